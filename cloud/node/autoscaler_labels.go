// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/platform"
)

// autoscalerLabels returns the labels by which cluster-autoscaler recognises a GPU node. The node
// must register with them: without the label a Ready node whose device plugin has not started yet
// counts as a node without GPUs, and cluster-autoscaler adds another; with it the node counts as
// not ready yet. Source: cluster-autoscaler's processors/customresources/gpu_processor.go and
// https://github.com/NVIDIA/k8s-device-plugin/issues/1746.
func autoscalerLabels(f facts.Facts) map[string]string {
	label := platform.AcceleratorIn(f.Cloud.Name)
	if label == "" || f.Driver == nil && !hasGPU(f) {
		return nil
	}
	return map[string]string{label: accelerator(f)}
}

// accelerator names the GPU as cluster-autoscaler's own list for AWS does, which knows these:
// cloudprovider/aws/aws_cloud_provider.go, availableGPUTypes. gpuadm names newer GPUs like the
// newest in that list. The label must exist; its value matters only for limits that operators set
// by it.
func accelerator(f facts.Facts) string {
	model := strings.ToLower(firstModel(f))
	chip, _, _ := strings.Cut(model, " ")
	switch chip {
	case "":
		return "nvidia"
	case "k80", "p100", "v100", "t4", "a100":
		return "nvidia-tesla-" + chip
	case "rtx": // the first word is not enough
		chip = sanitise(model)
	}

	return "nvidia-" + sanitise(strings.ReplaceAll(chip, "/", "-"))
}

// firstModel returns the model of the first GPU on the bus that has a known one. The bus shows it
// before there is a driver.
func firstModel(f facts.Facts) string {
	for _, p := range f.GPUs {
		if p.Display() && p.Model != "" {
			return p.Model
		}
	}
	return ""
}
