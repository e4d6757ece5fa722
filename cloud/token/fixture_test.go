// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"cmp"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/joins"
)

// joinedStage waits until the node is ready, as the stage of that name does.
func joinedStage(se *node.Session) converge.Stage {
	return converge.Stage{Name: "joined", Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
		return []converge.Want{node.WaitReady(se, s, f, method.NodeName(s, f), cmp.Or(f.Kubelet.Kubeconfig, kubelet.Kubeconfig))}, nil
	}}
}

func testThing(ref converge.Ref) (converge.Thing, error) {
	switch ref.Kind {
	case "bootstrap":
		return NewCertificate(ref.Name), nil
	case "registered":
		return node.NewRegistered(ref.Name), nil
	case "joined":
		return node.NewJoined(ref.Name), nil
	}
	return joins.Thing(ref)
}
