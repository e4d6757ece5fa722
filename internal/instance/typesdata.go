// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

// typesDate is when the rows were last read against their sources.
const typesDate = "2026-11-21"

// Where the rows come from.
const (
	// Amazon's list of types, as Karpenter has it from EC2's own answers: website/content/en/preview/reference/instance-types.md
	// of https://github.com/aws/karpenter-provider-aws.
	awsTypes = "https://karpenter.sh/preview/reference/instance-types/"
	// The same in Amazon's words, and which of them have NVSwitches.
	awsPage = "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html"
	// "Install NVIDIA drivers": the fabric manager on types with NVSwitches.
	awsFabric = awsTypes + " and https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/install-nvidia-driver.html"

	gcePage = "https://cloud.google.com/compute/docs/accelerator-optimized-machines"
	// Which GPUs a machine type has, as Google's Cluster Toolkit (gpu_definition.tf) and SkyPilot (sky/catalog/gcp_catalog.py and its
	// tests) have it: the two agree.
	gceTypes = "https://github.com/GoogleCloudPlatform/cluster-toolkit and https://github.com/skypilot-org/skypilot"

	azurePage = "https://learn.microsoft.com/azure/virtual-machines/sizes/overview"
	// Which sizes AKS starts the fabric manager on: pkg/agent/datamodel/gpu_components.go, FabricManagerGPUSizes.
	azureFabric = "https://github.com/Azure/AgentBaker and " + azurePage
)

// knownTypes are the GPU types of the three clouds. Machines to which GPUs are attached in any number (GCE's N1) are not among
// them, nor are those whose number nobody has written down.
func knownTypes() []typeRow {
	rows := append(awsAll(), gceAll()...)
	return append(rows, azureAll()...)
}

func awsAll() []typeRow {
	row := func(names string, gpus int, model string) typeRow {
		return typeRow{"aws", names, Type{GPUs: gpus, Model: model, Source: awsTypes, Checked: "source"}}
	}
	fabric := func(names, model string) typeRow {
		return typeRow{"aws", names, Type{GPUs: 8, Model: model, Fabric: true, Source: awsFabric, Checked: "source"}}
	}
	old := func(names string, gpus int, model string) typeRow {
		return typeRow{"aws", names, Type{GPUs: gpus, Model: model, Source: awsPage, Checked: "memory"}}
	}
	part := func(names string) typeRow {
		return typeRow{"aws", names, Type{GPUs: 1, Model: "L4", Part: true, Source: awsTypes, Checked: "source"}}
	}
	return []typeRow{
		old("g3s.xlarge g3.4xlarge", 1, "M60"),
		old("g3.8xlarge", 2, "M60"),
		old("g3.16xlarge", 4, "M60"),
		old("p3.2xlarge", 1, "V100 16GB"),
		old("p3.8xlarge", 4, "V100 16GB"),
		old("p3.16xlarge", 8, "V100 16GB"), // NVLink without switches
		row("p3dn.24xlarge", 8, "V100 32GB"),
		fabric("p4d.24xlarge", "A100 40GB"),
		fabric("p4de.24xlarge", "A100 80GB"),
		row("p5.4xlarge", 1, "H100 80GB"),
		fabric("p5.48xlarge", "H100 80GB"),
		fabric("p5e.48xlarge p5en.48xlarge", "H200"),
		fabric("p6-b200.48xlarge", "B200"),
		fabric("p6-b300.48xlarge", "B300"),
		old("p6e-gb200.36xlarge", 4, "GB200"), // its switches are in other machines of the rack
		row("g4dn.xlarge g4dn.2xlarge g4dn.4xlarge g4dn.8xlarge g4dn.16xlarge", 1, "T4"),
		row("g4dn.12xlarge", 4, "T4"),
		row("g4dn.metal", 8, "T4"),
		row("g5.xlarge g5.2xlarge g5.4xlarge g5.8xlarge g5.16xlarge", 1, "A10G"),
		row("g5.12xlarge g5.24xlarge", 4, "A10G"),
		row("g5.48xlarge", 8, "A10G"),
		row("g5g.xlarge g5g.2xlarge g5g.4xlarge g5g.8xlarge", 1, "T4G"),
		row("g5g.16xlarge g5g.metal", 2, "T4G"),
		row("g6.xlarge g6.2xlarge g6.4xlarge g6.8xlarge g6.16xlarge gr6.4xlarge gr6.8xlarge", 1, "L4"),
		row("g6.12xlarge g6.24xlarge", 4, "L4"),
		row("g6.48xlarge", 8, "L4"),
		part("g6f.large g6f.xlarge g6f.2xlarge g6f.4xlarge gr6f.4xlarge"), // an eighth, a quarter, a half
		row("g6e.xlarge g6e.2xlarge g6e.4xlarge g6e.8xlarge g6e.16xlarge", 1, "L40S"),
		row("g6e.12xlarge g6e.24xlarge", 4, "L40S"),
		row("g6e.48xlarge", 8, "L40S"),
		row("g7.2xlarge g7.4xlarge g7.8xlarge", 1, "RTX PRO 4500 Server"),
		row("g7.12xlarge", 2, "RTX PRO 4500 Server"),
		row("g7.24xlarge", 4, "RTX PRO 4500 Server"),
		row("g7.48xlarge", 8, "RTX PRO 4500 Server"),
		row("g7e.2xlarge g7e.4xlarge g7e.8xlarge", 1, "RTX PRO 6000 Server"),
		row("g7e.12xlarge", 2, "RTX PRO 6000 Server"),
		row("g7e.24xlarge", 4, "RTX PRO 6000 Server"),
		row("g7e.48xlarge", 8, "RTX PRO 6000 Server"),
	}
}

// gceAll: the number in a name of the A series is that of its GPUs. Of A2 nobody says who looks after its switches.
func gceAll() []typeRow {
	row := func(names string, gpus int, model string) typeRow {
		return typeRow{"gce", names, Type{GPUs: gpus, Model: model, Source: gceTypes, Checked: "source"}}
	}
	fabric := func(names, model string) typeRow {
		return typeRow{"gce", names, Type{GPUs: 8, Model: model, Fabric: true, Source: gceTypes, Checked: "source"}}
	}
	unseen := func(names string, t Type) typeRow {
		t.Source, t.Checked = gcePage, "memory"
		return typeRow{"gce", names, t}
	}
	return []typeRow{
		row("a2-highgpu-1g", 1, "A100 40GB"),
		row("a2-highgpu-2g", 2, "A100 40GB"),
		row("a2-highgpu-4g", 4, "A100 40GB"),
		row("a2-highgpu-8g", 8, "A100 40GB"),
		row("a2-megagpu-16g", 16, "A100 40GB"),
		row("a2-ultragpu-1g", 1, "A100 80GB"),
		row("a2-ultragpu-2g", 2, "A100 80GB"),
		row("a2-ultragpu-4g", 4, "A100 80GB"),
		row("a2-ultragpu-8g", 8, "A100 80GB"),
		row("a3-highgpu-1g", 1, "H100 80GB"),
		row("a3-highgpu-2g", 2, "H100 80GB"),
		row("a3-highgpu-4g", 4, "H100 80GB"),
		fabric("a3-highgpu-8g a3-megagpu-8g", "H100 80GB"),
		unseen("a3-edgegpu-8g", Type{GPUs: 8, Model: "H100 80GB", Fabric: true}),
		fabric("a3-ultragpu-8g", "H200"),
		fabric("a4-highgpu-8g", "B200"),
		unseen("a4x-highgpu-4g", Type{GPUs: 4, Model: "GB200"}), // its switches are in other machines of the rack
		row("g2-standard-4 g2-standard-8 g2-standard-12 g2-standard-16 g2-standard-32", 1, "L4"),
		row("g2-standard-24", 2, "L4"),
		row("g2-standard-48", 4, "L4"),
		row("g2-standard-96", 8, "L4"),
		unseen("g4-standard-6 g4-standard-12 g4-standard-24", Type{GPUs: 1, Model: "RTX PRO 6000 Server", Part: true}),
		row("g4-standard-48", 1, "RTX PRO 6000 Server"),
		row("g4-standard-96", 2, "RTX PRO 6000 Server"),
		row("g4-standard-192", 4, "RTX PRO 6000 Server"),
		row("g4-standard-384", 8, "RTX PRO 6000 Server"),
	}
}

func azureAll() []typeRow {
	row := func(names string, gpus int, model string) typeRow {
		return typeRow{"azure", names, Type{GPUs: gpus, Model: model, Source: azurePage, Checked: "documentation"}}
	}
	fabric := func(names, model string) typeRow {
		return typeRow{"azure", names, Type{GPUs: 8, Model: model, Fabric: true, Source: azureFabric, Checked: "source"}}
	}
	old := func(names string, gpus int, model string) typeRow {
		return typeRow{"azure", names, Type{GPUs: gpus, Model: model, Source: azurePage, Checked: "memory"}}
	}
	part := typeRow{"azure", "Standard_NV6ads_A10_v5 Standard_NV12ads_A10_v5 Standard_NV18ads_A10_v5", Type{GPUs: 1, Model: "A10", Part: true, Source: azurePage, Checked: "documentation"}}
	return []typeRow{
		row("Standard_NC4as_T4_v3 Standard_NC8as_T4_v3 Standard_NC16as_T4_v3", 1, "T4"),
		row("Standard_NC64as_T4_v3", 4, "T4"),
		old("Standard_NC6s_v3", 1, "V100 PCIe 16GB"),
		old("Standard_NC12s_v3", 2, "V100 PCIe 16GB"),
		old("Standard_NC24s_v3 Standard_NC24rs_v3", 4, "V100 PCIe 16GB"),
		row("Standard_NC24ads_A100_v4", 1, "A100 PCIe 80GB"),
		row("Standard_NC48ads_A100_v4", 2, "A100 PCIe 80GB"),
		row("Standard_NC96ads_A100_v4", 4, "A100 PCIe 80GB"),
		row("Standard_NC40ads_H100_v5", 1, "H100 NVL 94GB"),
		row("Standard_NC80adis_H100_v5", 2, "H100 NVL 94GB"),
		old("Standard_NCC40ads_H100_v5", 1, "H100 NVL 94GB"),
		old("Standard_ND40rs_v2", 8, "V100 32GB"), // NVLink without switches
		fabric("Standard_ND96asr_v4", "A100 40GB"),
		fabric("Standard_ND96amsr_A100_v4", "A100 80GB"),
		fabric("Standard_ND96is_H100_v5 Standard_ND96isr_H100_v5", "H100 80GB"),
		fabric("Standard_ND96is_H200_v5 Standard_ND96isr_H200_v5", "H200"),
		old("Standard_ND128isr_NDR_GB200_v6", 4, "GB200"), // its switches are in other machines of the rack
		old("Standard_ND128isr_GB300_v6", 4, "GB300"),
		old("Standard_NV12s_v3", 1, "M60"),
		old("Standard_NV24s_v3", 2, "M60"),
		old("Standard_NV48s_v3", 4, "M60"),
		part,
		row("Standard_NV36ads_A10_v5 Standard_NV36adms_A10_v5", 1, "A10"),
		row("Standard_NV72ads_A10_v5", 2, "A10"),
	}
}
