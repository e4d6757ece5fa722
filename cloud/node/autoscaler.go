// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
)

// autoscalerLabels are the labels by which cluster-autoscaler knows a GPU node. They must be there at the registration:
// without one a Ready node whose device plugin has not started yet counts as one that brought no GPUs, and a second is made;
// with it the node counts as not ready yet. Source: cluster-autoscaler's processors/customresources/gpu_processor.go and
// https://github.com/NVIDIA/k8s-device-plugin/issues/1746.
//
// On pools of GKE and AKS those clouds set theirs, and Karpenter sets its own everywhere.
func autoscalerLabels(f facts.Facts) map[string]string {
	if f.Driver == nil && !slices.ContainsFunc(f.GPUs, facts.PCI.Display) {
		return nil
	}
	if f.Cloud.Name == "aws" { // cluster-autoscaler's cloudprovider/aws: GPULabel; EKS does not set it
		return map[string]string{"k8s.amazonaws.com/accelerator": accelerator(f)}
	}
	return nil
}

// accelerator names the GPU as cluster-autoscaler's own list for AWS does, which knows these:
// cloudprovider/aws/aws_cloud_provider.go, availableGPUTypes. Newer ones are named like its newest. That the label is there
// counts; its value is only compared with limits that people state by it.
func accelerator(f facts.Facts) string {
	model := ""
	for _, p := range f.GPUs { // known before there is a driver
		if p.Display() && p.Model != "" && model == "" {
			model = p.Model
		}
	}
	chip, _, _ := strings.Cut(strings.ToLower(model), " ")
	switch chip {
	case "":
		return "nvidia"
	case "k80", "p100", "v100", "t4", "a100":
		return "nvidia-tesla-" + chip
	case "rtx": // the first word is not enough
		chip = sanitise(strings.ToLower(model))
	}
	return "nvidia-" + sanitise(strings.ReplaceAll(chip, "/", "-"))
}
