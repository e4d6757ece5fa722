// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// planted is in the user data, beside what is of use there, and has to come out nowhere.
const planted = "planted-in-the-user-data"

// ecrPlugin is kubelet's plugin that logs in to ECR. No image here is from there.
const ecrPlugin = "/etc/eks/image-credential-provider/ecr-credential-provider"

// ec2Machine is a machine of EC2's with an image of one's own: GPUs, an engine, kubelet's program
// and its plugin for ECR, and no nodeadm.
func ec2Machine(n *kube.Node, userData string) kube.Cloud {
	n.Put(ecrPlugin, "#!/bin/sh\nexit 1\n", 0o755)
	return kube.Cloud{Setup: cloudfake.Setup{
		Cloud: "aws",
		Machine: cloudfake.Machine{
			ID: "i-0abcdef1234567890", Type: "p5.lab", Region: "us-east-1", Zone: "us-east-1a", Image: "ami-0123456789abcdef0", Account: "123456789012",
			Name: n.Name, PrivateIP: n.IP, MAC: "0a:ff:c0:00:00:01", Role: "node", UserData: userData,
		},
		Cluster: cloudfake.Cluster{
			Name:        "eks-" + n.Name[:strings.Index(n.Name, ".")],
			Server:      kube.Server,
			Version:     "1.35",
			ServiceCIDR: "10.96.0.0/16",
		},
	}}
}

// userData is what a launch template gives a machine: a script, and in some a NodeConfig.
func userData(nodeConfig string) string {
	text := "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"x\"\n\n--x\nContent-Type: text/x-shellscript\n\n#!/bin/sh\nexport SECRET=" + planted + "\n"
	if nodeConfig != "" {
		text += "--x\nContent-Type: application/node.eks.aws\n\n" + nodeConfig
	}
	return text + "--x--\n"
}

// nodeConfig is what EKS puts into the user data of its node groups.
func nodeConfig(c *kube.T, of cloudfake.Cluster, kubelet kube.Object, engine string) string {
	text, err := json.Marshal(kube.Object{"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": kube.Object{
		"cluster": kube.Object{"name": of.Name, "apiServerEndpoint": of.Server, "certificateAuthority": c.CA(), "cidr": of.ServiceCIDR},
		"kubelet": kubelet, "containerd": kube.Object{"config": engine},
	}})
	must.OK(c, err)
	return string(text) + "\n"
}

// TestLabKubeEKS: a machine in EC2 without EKS's tools becomes a node of its cluster, with gpuadm
// as what kubelet calls for its tokens. On one host kubelet waits for the GPUs, and the cluster is
// asked for; on the other its node registers with the startup taint, and the user data names the
// cluster.
func TestLabKubeEKS(t *testing.T) {
	t.Parallel()
	for _, dist := range lab.Dists() {
		t.Run(dist, func(t *testing.T) {
			t.Parallel()
			c := cluster.Run(t)
			gated := dist == "trixie"
			n := bootGPU(t, c, "ip-10-0-1-"+fmt.Sprint(len(dist))+".ec2.internal", dist)
			n.Devices(2 * count)
			cloud := ec2Machine(n.Node, userData(""))
			cloud.Cluster.CA = c.CA()
			join := fmt.Sprintf("[join]\nmethod = \"eks\"\nkubelet_config = %q\n", configFile)
			args, spec, says := []string{"apply"}, partitioned, "+ file /etc/systemd/system/kubelet.service.d/50-gpuadm.conf"
			if gated {
				join += fmt.Sprintf("cluster = %q\n", cloud.Cluster.Name)
				args = append(args, "--install")
			} else {
				cloud.Machine.UserData = userData(nodeConfig(c, cloud.Cluster, nil, ""))
				n.account()
				spec, says = partitioned+"kubeconfig = \""+accountFile+"\"\n", "- node taint startup-taint.cluster-autoscaler.kubernetes.io/gpu:NoSchedule"
			}

			n.Cloud(cloud)
			n.wants(partitioned)
			before := n.tree()
			n.wants(spec, join)
			n.gpuadm(0, []string{"plan", "-v"}, "aws:///us-east-1a/i-0abcdef1234567890")
			n.asked("eks-plan-" + map[bool]string{true: "described", false: "userdata"}[gated])
			check.Has(t, n.traced(args...), says, "the first apply does not say %q:", says)
			n.settled(args[1:]...)
			n.Ready()
			n.eksNode(cloud)
			n.noSecrets()
			n.asks("eks-again")
			n.leaves(before)
		})
	}
}

// traced applies once, and wants no secret in a command line.
func (n gpuHost) traced(args ...string) (output string) {
	n.t.Helper()
	const log = "/run/argv"
	r := n.Exec(append([]string{"strace", "-f", "-e", "trace=execve", "-s", "10000", "-v", "-o", log, "gpuadm"}, args...)...)
	must.That(n.t, r.Exit == 0 || r.Exit == 75, "apply: %s", r)
	n.t.Logf("the first apply: %s", r)
	found := secretIn(n.Get(log) + r.Stdout + r.Stderr)
	check.That(n.t, found == "", "%s is in a command line or in the output", found)
	n.Must("rm", log)
	return r.Stderr
}

// secrets are the words of which none may come out.
func secrets() []string {
	return []string{planted, cloudfake.AccessKey, cloudfake.SecretKey, cloudfake.SessionToken, "planted-imds-token", "k8s-aws-v1.", "X-Amz-Signature"}
}

func secretIn(text string) string {
	for _, s := range secrets() {
		if strings.Contains(text, s) {
			return s
		}
	}
	return ""
}

// noSecrets wants nothing secret in any file, in the journal, in a command line, and in gpuadm's
// output. gpuadm itself, and the image that has it, hold the words by which a token is made.
func (n gpuHost) noSecrets() {
	n.t.Helper()
	for _, s := range secrets() {
		r := n.Exec("grep", "-rlFs", "--devices=skip", "--exclude=gpuadm", "--exclude-dir=io.containerd.content.v1.content", "-e", s, "/etc", "/var", "/run", "/tmp", "/root", "/usr/local")
		check.That(n.t, r.Stdout == "", "%s is in %s", s, r.Stdout)
		r = n.Exec("sh", "-c", `journalctl --no-pager --output=cat | grep -F -e "$1"`, "sh", s)
		check.That(n.t, r.Exit != 0, "%s is in the journal: %s", s, r.Stdout)
	}

	output := n.Exec("sh", "-c", "cat /proc/[0-9]*/cmdline").Stdout
	for _, args := range [][]string{{"facts", "-o", "json"}, {"plan"}, {"plan", "-o", "json"}, {"status"}, {"status", "-o", "json"}, {"doctor"}} {
		r := n.Exec(append([]string{"gpuadm"}, args...)...)
		output += r.Stdout + r.Stderr
	}

	found := secretIn(output)
	check.That(n.t, found == "", "%s is printed", found)
}

// eksNode wants the node that EKS's machine becomes.
func (n gpuHost) eksNode(cloud kube.Cloud) {
	n.t.Helper()
	const outside = "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule"
	n.seenReady()
	o := n.Object()
	check.Equal(n.t, kube.Text(o, "spec", "providerID"), "aws:///"+cloud.Machine.Zone+"/"+cloud.Machine.ID, "provider id")
	// The taint goes when EKS's cloud controller has found the machine by that; there is none here.
	taints := kube.Taints(o)
	check.That(n.t, slices.Equal(slices.Sorted(slices.Values(taints)), []string{"example.com/gpu=yes:NoSchedule", outside}), "taints %v", taints)
	for _, key := range []string{"topology.kubernetes.io/zone", "node.kubernetes.io/instance-type"} {
		is := kube.Text(o, "metadata", "labels", key)
		check.That(n.t, is == "", "label %s is %q, and the cloud controller's to set", key, is)
	}

	c := n.c
	c.Merge("/api/v1/nodes/"+n.Name, kube.Object{"spec": kube.Object{"taints": []kube.Object{{"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}}}})
	n.joined()
}

// asked wants the cloud to have been asked what the golden file says, and nothing else, since the
// last time.
func (n gpuHost) asked(golden string) {
	n.t.Helper()
	n.golden(golden, n.since())
}

// since are the requests of the host's cloud since the last call.
func (n gpuHost) since() []string {
	n.t.Helper()
	const seen = "/run/asked"
	all := n.Asked()
	before := 0
	_, _ = fmt.Sscan(n.Exec("cat", seen).Stdout, &before)
	n.Put(seen, fmt.Sprint(len(all)), 0o644)
	return all[before:]
}

// golden compares with a file of testdata.
func (n gpuHost) golden(name string, lines []string) {
	n.t.Helper()
	file := "testdata/" + name + ".txt"
	text := strings.ReplaceAll(strings.Join(lines, "\n")+"\n", n.Name[:strings.Index(n.Name, ".")], "NAME")
	if *update {
		must.OK(n.t, os.WriteFile(file, []byte(text), 0o644))
	}
	want := must.Get(os.ReadFile(file))(n.t)
	check.That(n.t, text == string(want), "the cloud was asked\n%s\nnot as %s has it\n%s", text, file, want)
}

// asks wants an apply with nothing to do, that asks neither EC2 nor EKS: only for the keys that a
// token is made of.
func (n gpuHost) asks(golden string) {
	n.t.Helper()
	n.since()
	before := len(n.c.Requests(n.user()))
	r := n.gpuadm(0, []string{"apply"})
	check.That(n.t, r.Stdout == "Nothing to do.\n", "the second apply: %s", r)
	n.asked(golden)
	asked := n.c.Requests(n.user())[before:]
	check.That(n.t, len(asked) <= 1, "the second apply asked for %v", asked)
}

// leaves wants undo to refuse while a pod runs, and then to leave nothing behind; pods of
// DaemonSets do not count.
func (n gpuHost) leaves(before lab.Tree) {
	n.t.Helper()
	name := "work-" + n.Name
	pod(n.c, name, n.Name, "nvidia.com/gpu")
	n.c.PodReady("default", name)
	pid := n.MainPID("kubelet.service")
	n.gpuadm(1, []string{"undo", "--to", "all"}, "it runs 1 pod: default/"+name, "kubectl drain "+n.Name)
	now := n.MainPID("kubelet.service")
	check.That(n.t, now == pid && pid != 0, "an undo that was refused: kubelet was %d, is %d", pid, now)
	n.c.Delete("/api/v1/namespaces/default/pods/" + name)
	n.c.Until("the pod has ended, as kubectl drain waits for", func() string {
		if n.c.Look("/api/v1/namespaces/default/pods/"+name) != nil {
			return "it is still there"
		}
		return ""
	})
	r := n.gpuadm(0, []string{"undo", "--to", "all"}, "kubectl delete node "+n.Name)
	n.t.Logf("undo: %s", r)
	check.That(n.t, n.Property("kubelet.service", "ActiveState") != "active", "kubelet still runs")
	n.same(before, n.tree())
	left := n.Exec("find", "/var/lib/kubelet", "-name", "config.yaml", "-o", "-name", "kubelet-client*")
	check.That(n.t, left.Stdout == "", "left by gpuadm: %s", left.Stdout)
	if o := n.Object(); kube.Condition(o, gpuReady)["status"] == "True" {
		n.t.Errorf("who reads the Node still takes the GPUs for ready: %s", n.Describe())
	}
}

// TestLabKubeEKSTroubles: where the machine's cloud does not answer, the message names the fix, the
// exit code says whether waiting helps, and nothing is touched.
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
		check.None(t, secretIn(r.Stdout+r.Stderr), "%s: it tells", x.what)
	}

	check.None(t, before.Diff(tree()), "touched:")

	t.Log("the metadata service is 20 s late, as at boot")
	cloud := sound
	cloud.After = 20 * time.Second
	n.Cloud(cloud)
	n.wants(join)
	n.Must("sh", "-c", "echo 127.0.10.1 eks.us-east-1.amazonaws.com >>/etc/hosts")
	n.gpuadm(0, []string{"plan", "-v"}, "registered "+n.Name)
}
