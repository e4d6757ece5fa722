// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// mpsLabel selects the nodes on which the device plugin's chart and the GPU Operator start the
// control daemon of MPS.
// Sources: NVIDIA/k8s-device-plugin, deployments/helm/nvidia-device-plugin,
// templates/daemonset-mps-control-daemon.yml; NVIDIA/gpu-operator, assets/state-mps-control-daemon.
const mpsLabel = "nvidia.com/mps.capable"

// waitForMPS waits for the control daemon of MPS, where the spec shares the GPUs by it and the
// device plugin runs: the plugin offers nothing before the daemon answers, and asks it again
// each 30 seconds.
// Source: NVIDIA/k8s-device-plugin, internal/plugin/mps.go (waitForDaemon); its issues
// 634, 712, 762.
func (r readyStage) waitForMPS(ctx context.Context, v host.View, n *kube.Node, missing []string) error {
	if r.spec.Sharing.MPS == 0 {
		return nil
	}
	plugin, err := facts.FindPlugin(ctx, v)
	if err != nil || plugin.Program == "" {
		return err
	}
	mps, err := facts.FindMPS(ctx, v)
	if err != nil || mps.Control != "" {
		return err
	}

	cause := "no MPS control daemon runs here"
	try := []string{startMPS(n)}
	switch {
	case mps.Program != "":
		cause = fmt.Sprintf("no MPS control daemon runs here: NVIDIA's program for it (process %s) has started none", mps.Process)
		try = []string{"see what its log says: " + runnerLog(mps.Runner, n.Name)}
	case mps.Other != "":
		cause = fmt.Sprintf("no MPS control daemon runs here that answers the device plugin: process %s is another one, at %s", mps.Other, mps.At)
	}

	const text = "the node offers %s: [sharing] shares the GPUs by MPS, and %s"
	return trouble.Wait{
		For: fmt.Sprintf(text, strings.Join(missing, ", "), cause),
		Try: append(try, "see what the log of the device plugin says: "+pluginLog(ctx, v, n.Name)),
		Err: mpsNotReady,
	}
}

// startMPS says what starts the control daemon of MPS on a node.
func startMPS(n *kube.Node) string {
	const by = "have NVIDIA's mps-control-daemon start it: the device plugin's chart and the GPU Operator run one " +
		"on nodes with the label " + mpsLabel + "=true"
	if n.Labels[mpsLabel] == "true" {
		return by + ", which this node has"
	}
	return by + ": kubectl label node " + n.Name + " " + mpsLabel + "=true"
}

// runnerLog returns the command that leads to the log of a program.
func runnerLog(r facts.Runner, node string) string {
	if r.Unit != "" {
		return "journalctl -u " + r.Unit
	}
	return podsOn(node)
}
