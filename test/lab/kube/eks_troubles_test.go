// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// TestLabKubeEKSTroubles: where the machine's cloud does not answer, the message names the fix, the exit code says whether
// waiting helps, and nothing is touched.
func TestLabKubeEKSTroubles(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "ip-10-0-1-75.ec2.internal", "trixie")
	sound := ec2Machine(n.Node, "")
	sound.Cluster.CA = c.CA()
	join := fmt.Sprintf("[join]\nmethod = \"eks\"\ncluster = %q\nkubelet_config = %q\n", sound.Cluster.Name, configFile)
	n.Cloud(sound)
	tree := func() lab.Tree {
		return n.Tree([]string{"/etc", "/var"}, "/etc/gpuadm", "/etc/hosts", "/var/lib/gpuadm", "/var/log", "/var/lib/systemd", "/var/lib/fakenvml.state", "/etc/systemd/system/gpuadm-lab-cloud.service")
	}
	before := tree()
	for _, x := range []struct {
		what  string
		spoil func(*kube.Cloud)
		join  string
		exit  int
		words []string
	}{
		{"throttled", func(c *kube.Cloud) { c.Refused = "throttled" }, "", 75, []string{"AWS limits the request rate", "[join] server, ca_file and service_cidr"}},
		{"a role without rights", func(c *kube.Cloud) { c.Refused = "denied" }, "", 1, []string{"the instance's role lacks the permission", "AmazonEKSWorkerNodePolicy"}},
		{"no role", func(c *kube.Cloud) { c.Machine.Role = "" }, "", 1, []string{"role", "aws ec2 associate-iam-instance-profile"}},
		{"a region without the cluster", func(c *kube.Cloud) { c.Refused = "missing" }, "", 1, []string{"in us-east-1: not found", "aws eks list-clusters --region us-east-1"}},
		{"a clock ten minutes off", func(c *kube.Cloud) { c.ClockOff = 600 }, "", 75, []string{"behind AWS's", "chronyc makestep"}},
		{"no route to AWS", func(*kube.Cloud) { n.Must("sed", "-i", "/ eks.us-east-1.amazonaws.com/d", "/etc/hosts") }, "", 75, []string{"the name eks.us-east-1.amazonaws.com is not known", "aws ec2 create-vpc-endpoint"}},
	} {
		cloud := sound
		x.spoil(&cloud)
		n.Cloud(cloud)
		n.wants(join, x.join)
		began := time.Now()
		r := n.gpuadm(x.exit, []string{"apply"}, x.words...)
		t.Logf("%s: %v, %s", x.what, time.Since(began).Round(100*time.Millisecond), r)
		if found := secretIn(r.Stdout + r.Stderr); found != "" {
			t.Errorf("%s: it tells %s", x.what, found)
		}
	}
	if diff := before.Diff(tree()); diff != "" {
		t.Errorf("touched:\n%s", diff)
	}

	t.Log("the metadata service is 20 s late, as at boot")
	cloud := sound
	cloud.After = 20 * time.Second
	n.Cloud(cloud)
	n.wants(join)
	n.Must("sh", "-c", "echo 127.0.10.1 eks.us-east-1.amazonaws.com >>/etc/hosts")
	n.gpuadm(0, []string{"plan", "-v"}, "registered "+n.Name)
}
