// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares text with what it was when a developer reviewed it last.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got, -update takes it over)\n%s", name, d)
	}
}

const ca = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"

// userData names the cluster, and holds a secret.
func userData() string {
	return `MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="//"

--//
Content-Type: text/x-shellscript; charset="us-ascii"

#!/bin/bash
echo planted-user-data
--//
Content-Type: application/node.eks.aws

apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  cluster:
    name: gpus
    apiServerEndpoint: https://ABC.gr7.us-east-1.eks.amazonaws.com
    certificateAuthority: ` + base64.StdEncoding.EncodeToString([]byte(ca)) + `
    cidr: 172.20.0.0/16
  kubelet:
    flags: ["--node-labels=planted-user-data=1"]
--//--
`
}

func ec2() cloudfake.Machine {
	return cloudfake.Machine{
		ID: "i-0abcdef1234567890", Type: "p5.48xlarge", Region: "us-east-1", Zone: "us-east-1a", Image: "ami-0123456789abcdef0",
		Account: "123456789012", Name: "ip-10-0-1-2.ec2.internal", PrivateIP: "10.0.1.2", IPv6: "2600:1f18::2", MAC: "0a:ff:c0:00:00:01",
		Tags: map[string]string{"eks:cluster-name": "gpus", "Name": "gpu node 1"}, UserData: userData(), Role: "node",
	}
}

func gce() cloudfake.Machine {
	return cloudfake.Machine{
		ID: "4242424242424242424", Type: "a3-highgpu-8g", Region: "us-central1", Zone: "us-central1-b", Name: "gke-gpus-pool-1-abcd",
		Image: "projects/gke-node-images/global/images/gke-1344-ubuntu", Account: "my-project", PrivateIP: "10.128.0.2", MAC: "42:01:0a:80:00:02",
		Attributes: map[string]string{"cluster-name": "gpus", "cluster-location": "us-central1", "instance-template": "projects/424242/global/instanceTemplates/gke-gpus-pool-1", "created-by": "projects/424242/zones/us-central1-b/instanceGroupManagers/gke-gpus-pool-1-grp", "kube-labels": "planted"},
	}
}

func azure() cloudfake.Machine {
	return cloudfake.Machine{
		ID: "02AAB8A4-74EF-476E-8182-F6D2BA4166A6", Type: "Standard_ND96isr_H100_v5", Region: "eastus", Zone: "1", Name: "aks-gpu-12345678-vmss_0",
		Image:   "/subscriptions/109a5e88/resourceGroups/AKS-Ubuntu/providers/Microsoft.Compute/galleries/AKSUbuntu/images/2204gen2containerd/versions/202508.20.0",
		Account: "8d10da13-8125-4ba9-a717-bf7490507b3d", PrivateIP: "10.224.0.4", MAC: "00:0d:3a:f8:06:ec", UserData: "planted-user-data",
		Tags:       map[string]string{"SkipGpuDriverInstall": "true", "aks-managed-poolName": "gpu"},
		Attributes: map[string]string{"vm-scale-set": "aks-gpu-12345678-vmss", "resource-group": "MC_rg_gpus_eastus"},
	}
}

// in puts a machine into a cloud.
func in(t *testing.T, cloud string, m cloudfake.Machine) (*cloudfake.Fake, *simhost.Node) {
	t.Helper()
	f := &cloudfake.Fake{Machine: m, Cluster: cloudfake.Cluster{
		Name: "gpus", Server: "https://ABC.gr7.us-east-1.eks.amazonaws.com", CA: []byte(ca), Version: "1.34", ServiceCIDR: "172.20.0.0/16",
	}}
	n := made(t)
	serve(f, n, cloud)
	for _, service := range []string{"eks", "ec2", "sts"} {
		n.Serve(service+"."+m.Region+".amazonaws.com", f.API())
	}
	return f, n
}

func serve(f *cloudfake.Fake, n *simhost.Node, cloud string) {
	n.Serve("169.254.169.254", map[string]http.Handler{"aws": f.EC2(), "gce": f.GCE(), "azure": f.Azure()}[cloud])
}

func machines() map[string]cloudfake.Machine {
	return map[string]cloudfake.Machine{"aws": ec2(), "gce": gce(), "azure": azure()}
}

// TestAsk asks each cloud, and shows what was asked and what became of it.
func TestAsk(t *testing.T) {
	for cloud, m := range machines() {
		t.Run(cloud, func(t *testing.T) {
			f, n := in(t, cloud, m)
			i, err := instance.Ask(t.Context(), n.View(), instance.Cloud{Name: cloud})
			if err != nil {
				t.Fatal(err)
			}
			said, err := json.MarshalIndent(i, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, "ask/"+cloud, strings.Join(f.Requests(), "\n")+"\n\n"+string(said)+"\n")
			if strings.Contains(string(said), "planted") {
				t.Errorf("a secret is kept: %s", said)
			}
			if strings.Contains(strings.Join(f.Requests(), "\n"), "kube-env") {
				t.Error("kube-env was asked for")
			}
			if n.Touches() != 0 && cloud != "aws" {
				t.Errorf("looking touched: %d", n.Touches())
			}
		})
	}
}

// said is an error in words, as a person would read it.
func said(t *testing.T, err error) string {
	t.Helper()
	var e *instance.Error
	if !errors.As(err, &e) {
		t.Fatalf("%T %v is no *instance.Error", err, err)
	}
	if e.Waits() != e.Waiting || e.What == "" {
		t.Errorf("%+v", e)
	}
	var b strings.Builder
	b.WriteString(e.What + "\n")
	for _, s := range e.Because {
		b.WriteString("  because " + s + "\n")
	}
	for _, s := range e.Try {
		b.WriteString("  try     " + s + "\n")
	}
	if e.Waiting {
		b.WriteString("  waiting helps\n")
	}
	if strings.Contains(b.String()+err.Error(), "planted") {
		t.Errorf("a secret is printed: %s", b.String())
	}
	return b.String()
}

// faults are how a metadata service fails.
func faults() map[string][]cloudfake.Fault {
	return map[string][]cloudfake.Fault{
		"drop":      {{What: "drop"}},
		"401":       {{On: "GET", What: "status", Status: 401}},
		"403":       {{What: "status", Status: 403}},
		"404":       {{What: "status", Status: 404}},
		"429":       {{What: "status", Status: 429}},
		"503":       {{What: "status", Status: 503}},
		"slow":      {{On: "GET", What: "slow"}},
		"truncated": {{On: "GET", What: "truncated"}},
		"huge":      {{On: "GET", What: "huge"}},
		"html":      {{On: "GET", What: "body", Body: "<html>\x1b[31mSign in to Wi-Fi</html>"}},
		"types":     {{On: "GET", What: "body", Body: `{"instanceId": 7, "compute": [1], "network": "no"}`}},
		"control":   {{On: "GET", What: "body", Body: `{"instanceId": "i-\u001b[2J", "instanceType": "x", "region": "r", "compute": {"vmId": "\u001b[2J", "vmSize": "a b", "location": "x"}}`}},
		"empty":     {{On: "GET", What: "body", Body: ""}},
		"bare":      {{What: "bare"}},
		"no answer": nil,
	}
}

// quick are the failures that are clear at once: it must not take longer than a second to say so.
func quick(name string) bool {
	return strings.Contains("401 403 404 huge html types control empty bare", name)
}

// TestAskFails shows every failure in its words, and that none takes longer than half a minute.
func TestAskFails(t *testing.T) {
	for cloud, m := range machines() {
		var all strings.Builder
		for _, name := range []string{"drop", "401", "403", "404", "429", "503", "slow", "truncated", "huge", "html", "types", "control", "empty", "bare", "no answer"} {
			synctest.Test(t, func(t *testing.T) {
				f, n := in(t, cloud, m)
				f.Break(faults()[name]...)
				if name == "no answer" {
					n = made(t)
				}
				start := time.Now()
				i, err := instance.Ask(t.Context(), n.View(), instance.Cloud{Name: cloud, InstanceID: "i-0abcdef1234567890"})
				took := time.Since(start)
				if err == nil {
					if name == "bare" && cloud == "azure" { // its answers have no header that proves them
						return
					}
					t.Errorf("%s %s: no error: %+v", cloud, name, i)
					return
				}
				if took > 31*time.Second || quick(name) && took > time.Second {
					t.Errorf("%s %s took %s", cloud, name, took)
				}
				all.WriteString(name + ": " + said(t, err) + "\n")
			})
		}
		golden(t, "fails/"+cloud, all.String())
	}
}

// TestAskWaits lets the service come up late, as at boot, and fail for a while.
func TestAskWaits(t *testing.T) {
	for cloud, m := range machines() {
		t.Run(cloud+" late", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, n := in(t, cloud, m)
				n.Serve("169.254.169.254", nil)
				go func() {
					time.Sleep(20 * time.Second)
					serve(f, n, cloud)
				}()
				if _, err := instance.Ask(t.Context(), n.View(), instance.Cloud{Name: cloud}); err != nil {
					t.Error(err)
				}
			})
		})
		t.Run(cloud+" failing", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, n := in(t, cloud, m)
				f.Break(cloudfake.Fault{What: "status", Status: 503, Times: 3}, cloudfake.Fault{What: "status", Status: 429, Times: 2})
				if _, err := instance.Ask(t.Context(), n.View(), instance.Cloud{Name: cloud}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestToken ends EC2's session tokens in the middle: another one is asked for.
func TestTokenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := in(t, "aws", ec2())
		f.Break(cloudfake.Fault{On: "GET /latest/meta-data/mac", What: "forget", Times: 1})
		i, err := instance.Ask(t.Context(), n.View(), instance.Cloud{Name: "aws"})
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(strings.Join(f.Requests(), "\n"), "PUT "); n != 2 || i.UserCluster == nil {
			t.Errorf("%d tokens were asked for: %v", n, f.Requests())
		}
	})
}

// TestAskStops: Ask ends with its context.
func TestAskStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			time.Sleep(3 * time.Second)
			stop()
		}()
		start := time.Now()
		if _, err := instance.Ask(ctx, made(t).View(), instance.Cloud{Name: "aws"}); !errors.Is(err, context.Canceled) || time.Since(start) > 4*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

// TestAskOutsideClouds refuses to ask where no cloud is seen, and says Later of an image.
func TestAskOutsideClouds(t *testing.T) {
	_, err := instance.Ask(t.Context(), made(t).View(), instance.Cloud{})
	golden(t, "fails/none", said(t, err))
	var later host.Later
	if _, err := instance.Ask(t.Context(), made(t, "image").View(), instance.Cloud{Name: "aws"}); !errors.As(err, &later) {
		t.Errorf("an image was asked: %v", err)
	}
}
