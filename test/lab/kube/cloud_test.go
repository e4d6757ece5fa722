// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// TestLabKubeCloud proves what the clouds' tests depend on: a host is in the cloud that it is put
// in, and is in another one when it is put there.
func TestLabKubeCloud(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := c.Boot("cloud", lab.Options{Dist: "trixie", GPUs: 8})
	aws := cloudfake.Machine{
		ID: "i-0abcdef1234567890", Type: "p5.48xlarge", Region: "us-east-1", Zone: "us-east-1a", Name: "ip-10-0-0-11.ec2.internal", Account: "123456789012",
		PrivateIP: n.IP, MAC: "0a:ff:00:00:00:01",
	}
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{Cloud: "aws", Machine: aws}})
	is := cloudOf(n)
	check.That(t, is.Name == "aws" && is.InstanceID == aws.ID && is.Type == aws.Type, "in EC2: %+v", is)
	n.Must("bash", "-c", `exec 3<>/dev/tcp/169.254.169.254/80; printf 'GET /latest/meta-data/instance-id HTTP/1.0\r\n\r\n' >&3; grep -q '401 Unauthorized' <&3`)
	c.Until("the question is written down", func() string {
		if asked := n.Asked(); !slices.Contains(asked, "GET /latest/meta-data/instance-id: 401") {
			return asked[len(asked)-1]
		}
		return ""
	})
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{
		Cloud: "gce",
		Machine: cloudfake.Machine{
			ID:   "1",
			Type: "a3-highgpu-8g",
			Zone: "us-central1-b",
		},
	}})
	is = cloudOf(n)
	check.That(t, is.Name == "gce", "in Google's: %+v", is)
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
