// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestCloud asks EC2 only where that is needed, and once in a run.
func TestCloud(t *testing.T) {
	f := &cloudfake.Fake{Machine: cloudfake.Machine{
		ID: "i-0abcdef1234567890", Type: "p5.48xlarge", Region: "us-east-1", Zone: "us-east-1a", Name: "ip-10-0-1-2.ec2.internal", MAC: "0a:ff:c0:00:00:01",
		UserData: "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {cluster: {name: gpus}}\n",
	}}
	n := ownImage(t)
	n.Serve("169.254.169.254", f.EC2())
	var c facts.Cache
	gather := func(needs facts.Needs) facts.Facts {
		t.Helper()
		got := must.Get(c.Gather(t.Context(), n, needs))(t)
		return got
	}
	if got := gather(facts.Needs{}); got.Cloud.Name != "aws" || got.Instance != nil || len(f.Requests()) != 0 {
		t.Errorf("%+v %+v, asked %v", got.Cloud, got.Instance, f.Requests())
	}
	needs := facts.Needs{Cluster: &instance.ClusterRef{}}
	first := gather(needs)
	if first.Instance == nil || first.Instance.Type != "p5.48xlarge" || first.Instance.UserCluster.Name != "gpus" || first.Cluster != nil {
		t.Fatalf("%+v %+v %v", first.Instance, first.Cluster, first.NoInstance)
	}
	before := len(f.Requests())
	if got := gather(needs); got.Instance == nil || len(f.Requests()) != before {
		t.Errorf("asked again: %v", f.Requests()[before:])
	}
}

// ownImage is a machine of EC2 with an image of one's own, which no scripts of EKS make a node.
func ownImage(t *testing.T) *simhost.Node {
	t.Helper()
	n := must.Get(simhost.New([]byte("-- sys/class/dmi/id/sys_vendor --\nAmazon EC2\n")))(t)
	return n
}

// TestNoCloud keeps why no cloud answers, and does not wait for it before each stage.
func TestNoCloud(t *testing.T) {
	f := &cloudfake.Fake{}
	f.Break(cloudfake.Fault{What: "status", Status: 403})
	n := ownImage(t)
	n.Serve("169.254.169.254", f.EC2())
	var c facts.Cache
	for range 2 {
		got, err := c.Gather(t.Context(), n, facts.Needs{Cluster: &instance.ClusterRef{}})
		if err != nil || got.Instance != nil || got.NoInstance == nil || !strings.Contains(got.NoInstance.What, "turned off") {
			t.Errorf("%+v %v %v", got.Instance, got.NoInstance, err)
		}
	}
	if len(f.Requests()) != 1 {
		t.Errorf("asked %v", f.Requests())
	}
}
