// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"context"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// HybridInit is what joins a machine of one's own, once everything of nodeadm's is on it.
// Source: https://docs.aws.amazon.com/eks/latest/userguide/hybrid-nodes-nodeadm.html
const HybridInit = "nodeadm init --config-source file://nodeConfig.yaml"

// hybrid looks at what would keep EKS's nodeadm for hybrid nodes from joining the machine, and leaves the rest to it: it turns
// swap off by itself, and looks at the API server, the credentials and the node's name with its own words.
// Source: https://github.com/aws/eks-hybrid, internal/system/swap.go and internal/validation.
func hybrid(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if !f.Live || f.Booting || f.Kubelet.Joined {
		return nil, nil
	}
	if err := kubelet.Starts(map[string]any{"failSwapOn": false}, s, f); err != nil {
		return nil, err
	}
	if s.Join.Region == "" {
		return nil, nil // its configuration has it, and lies where its administrator has put it
	}
	look := func(ctx context.Context, v host.View) (string, error) {
		return "", instance.ReachEKS(ctx, v, s.Join.Region, method.Via(s))
	}
	return []converge.Want{things.Check("EKS can be reached for nodeadm", look, "nodeadm signs in to AWS from here")}, nil
}
