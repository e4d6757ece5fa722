// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// TestLabKubeCloud proves what the clouds' tests depend on: a host is in the cloud that it is put in, and is in another
// one when it is put there; and that on EC2 nothing is begun after a notice.
func TestLabKubeCloud(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := c.Boot("cloud", lab.Options{Dist: "trixie", GPUs: 8})
	aws := cloudfake.Machine{
		ID: "i-0abcdef1234567890", Type: "p5.48xlarge", Region: "us-east-1", Zone: "us-east-1a", Name: "ip-10-0-0-11.ec2.internal", Account: "123456789012",
		PrivateIP: n.IP, MAC: "0a:ff:00:00:00:01",
	}
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{Cloud: "aws", Machine: aws}})
	if is := cloudOf(n); is.Name != "aws" || is.InstanceID != aws.ID || is.Type != aws.Type {
		t.Errorf("in EC2: %+v", is)
	}
	n.Must("bash", "-c", `exec 3<>/dev/tcp/169.254.169.254/80; printf 'GET /latest/meta-data/instance-id HTTP/1.0\r\n\r\n' >&3; grep -q '401 Unauthorized' <&3`)
	c.Until("the question is written down", func() string {
		if asked := n.Asked(); !slices.Contains(asked, "GET /latest/meta-data/instance-id: 401") {
			return asked[len(asked)-1]
		}
		return ""
	})
	spot(t, n, aws)
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{Cloud: "gce", Machine: cloudfake.Machine{ID: "1", Type: "a3-highgpu-8g", Zone: "us-central1-b"}}})
	if is := cloudOf(n); is.Name != "gce" {
		t.Errorf("in Google's: %+v", is)
	}
}

// spot wants nothing to be begun on a machine that EC2 takes away, and does not take silence or a recommendation for a notice.
func spot(t *testing.T, n *kube.Node, m cloudfake.Machine) {
	t.Helper()
	n.Put(specFile, "format = 1\n[runtime]\n", 0o644)
	before := n.Tree([]string{"/etc", "/usr", "/var"}, state)
	leaving := m
	leaving.Spot, leaving.SpotAction = true, `{"action":"terminate","time":"2037-11-21T18:29:47Z"}`
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{Cloud: "aws", Machine: leaving}})
	if r := n.Exec("gpuadm", "apply"); r.Exit != 1 || !strings.Contains(r.Stderr, "EC2 takes this machine away at 2037-11-21T18:29:47Z") {
		t.Errorf("on a machine that goes: %s", r)
	}
	if diff := before.Diff(n.Tree([]string{"/etc", "/usr", "/var"}, state)); diff != "" {
		t.Errorf("on a machine that goes:\n%s", diff)
	}
	leaving.SpotAction, leaving.Rebalance = "", `{"noticeTime":"2026-11-21T18:29:47Z"}`
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{Cloud: "aws", Machine: leaving}})
	if r := n.Exec("gpuadm", "apply"); r.Exit != 0 {
		t.Errorf("at a higher risk: %s", r)
	}
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{Cloud: "aws", Machine: leaving, Faults: []cloudfake.Fault{{What: "drop"}}}})
	n.Put(specFile, "format = 1\n[runtime]\nset_as_default = true\n", 0o644)
	if r := n.Exec("gpuadm", "apply"); r.Exit != 0 {
		t.Errorf("no answer: %s", r)
	}
}

// cloudOf is what gpuadm says of the cloud.
func cloudOf(n *kube.Node) (is struct{ Name, Managed, ManagedWhy, InstanceID, Type string }) {
	var all struct {
		Cloud *struct{ Name, Managed, ManagedWhy, InstanceID, Type string }
	}
	all.Cloud = (*struct{ Name, Managed, ManagedWhy, InstanceID, Type string })(&is)
	if err := json.Unmarshal([]byte(n.Must("gpuadm", "facts", "-o", "json")), &all); err != nil {
		panic(err)
	}
	return is
}
