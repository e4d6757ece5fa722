// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/test/check"
)

func TestAutoscalerLabels(t *testing.T) {
	gpu := func(model string) []facts.PCI {
		return []facts.PCI{{Class: "068000", Model: "NVSwitch (H100)"}, {Class: "030200", Model: model}}
	}
	aws := func(value string) map[string]string {
		return map[string]string{"k8s.amazonaws.com/accelerator": value}
	}
	for name, c := range map[string]struct {
		facts facts.Facts
		want  map[string]string
	}{
		"no GPU":      {facts.Facts{Cloud: instance.Cloud{Name: "aws"}}, nil},
		"no cloud":    {facts.Facts{GPUs: gpu("T4")}, nil},
		"EC2, T4":     {facts.Facts{GPUs: gpu("T4"), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia-tesla-t4")},
		"EC2, A100":   {facts.Facts{GPUs: gpu("A100 40GB"), Cloud: instance.Cloud{Name: "aws", Managed: "eks"}}, aws("nvidia-tesla-a100")},
		"EC2, A10G":   {facts.Facts{GPUs: gpu("A10G"), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia-a10g")},
		"EC2, L40S":   {facts.Facts{GPUs: gpu("L40S"), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia-l40s")},
		"EC2, H100":   {facts.Facts{GPUs: gpu("H100 80GB"), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia-h100")},
		"EC2, RTX":    {facts.Facts{GPUs: gpu("RTX PRO 6000 Server"), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia-rtx-pro-6000-server")},
		"EC2, new":    {facts.Facts{GPUs: gpu(""), Cloud: instance.Cloud{Name: "aws"}}, aws("nvidia")},
		"GKE":         {facts.Facts{GPUs: gpu("T4"), Cloud: instance.Cloud{Name: "gce", Managed: "gke"}}, nil},
		"AKS, a pool": {facts.Facts{GPUs: gpu("T4"), Cloud: instance.Cloud{Name: "azure", Managed: "aks"}}, nil},
	} {
		check.None(t, cmp.Diff(c.want, autoscalerLabels(c.facts)), "%s (-want +got):", name)
	}
}
