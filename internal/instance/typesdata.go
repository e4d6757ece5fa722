// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

// knownTypes are the GPU types of a cloud. Machines to which GPUs are attached in any number (GCE's N1) are not among them, nor
// are those whose number is not written down anywhere. The rows were last read against their sources on 2026-11-21.
func knownTypes(cloud string) []typeRow {
	switch cloud {
	case "aws":
		return awsTypes()
	case "gce":
		return gceTypes()
	case "azure":
		return azureTypes()
	}
	return nil
}

// awsTypes are Amazon's, as Karpenter has them from EC2's own answers: https://karpenter.sh/preview/reference/instance-types/.
// Those that are not verified are from https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html.
func awsTypes() []typeRow {
	return []typeRow{
		{"g3s.xlarge g3.4xlarge", 1, "M60", false},
		{"g3.8xlarge", 2, "M60", false},
		{"g3.16xlarge", 4, "M60", false},
		{"p3.2xlarge", 1, "V100 16GB", false},
		{"p3.8xlarge", 4, "V100 16GB", false},
		{"p3.16xlarge", 8, "V100 16GB", false},
		{"p3dn.24xlarge", 8, "V100 32GB", true},
		{"p4d.24xlarge", 8, "A100 40GB", true},
		{"p4de.24xlarge", 8, "A100 80GB", true},
		{"p5.4xlarge", 1, "H100 80GB", true},
		{"p5.48xlarge", 8, "H100 80GB", true},
		{"p5e.48xlarge p5en.48xlarge", 8, "H200", true},
		{"p6-b200.48xlarge", 8, "B200", true},
		{"p6-b300.48xlarge", 8, "B300", true},
		{"p6e-gb200.36xlarge", 4, "GB200", false},
		{"g4dn.xlarge g4dn.2xlarge g4dn.4xlarge g4dn.8xlarge g4dn.16xlarge", 1, "T4", true},
		{"g4dn.12xlarge", 4, "T4", true},
		{"g4dn.metal", 8, "T4", true},
		{"g5.xlarge g5.2xlarge g5.4xlarge g5.8xlarge g5.16xlarge", 1, "A10G", true},
		{"g5.12xlarge g5.24xlarge", 4, "A10G", true},
		{"g5.48xlarge", 8, "A10G", true},
		{"g5g.xlarge g5g.2xlarge g5g.4xlarge g5g.8xlarge", 1, "T4G", true},
		{"g5g.16xlarge g5g.metal", 2, "T4G", true},
		{"g6.xlarge g6.2xlarge g6.4xlarge g6.8xlarge g6.16xlarge gr6.4xlarge gr6.8xlarge", 1, "L4", true},
		{"g6.12xlarge g6.24xlarge", 4, "L4", true},
		{"g6.48xlarge", 8, "L4", true},
		{"g6f.large g6f.xlarge g6f.2xlarge g6f.4xlarge gr6f.4xlarge", 1, "L4", true},
		{"g6e.xlarge g6e.2xlarge g6e.4xlarge g6e.8xlarge g6e.16xlarge", 1, "L40S", true},
		{"g6e.12xlarge g6e.24xlarge", 4, "L40S", true},
		{"g6e.48xlarge", 8, "L40S", true},
		{"g7.2xlarge g7.4xlarge g7.8xlarge", 1, "RTX PRO 4500 Server", true},
		{"g7.12xlarge", 2, "RTX PRO 4500 Server", true},
		{"g7.24xlarge", 4, "RTX PRO 4500 Server", true},
		{"g7.48xlarge", 8, "RTX PRO 4500 Server", true},
		{"g7e.2xlarge g7e.4xlarge g7e.8xlarge", 1, "RTX PRO 6000 Server", true},
		{"g7e.12xlarge", 2, "RTX PRO 6000 Server", true},
		{"g7e.24xlarge", 4, "RTX PRO 6000 Server", true},
		{"g7e.48xlarge", 8, "RTX PRO 6000 Server", true},
	}
}

// gceTypes are Google's, as its Cluster Toolkit (gpu_definition.tf of https://github.com/GoogleCloudPlatform/cluster-toolkit) and
// SkyPilot (sky/catalog/gcp_catalog.py of https://github.com/skypilot-org/skypilot, and its tests) have them: the two agree. Those
// that are not verified are from https://cloud.google.com/compute/docs/accelerator-optimized-machines. The number in a name of
// the A series is that of its GPUs.
func gceTypes() []typeRow {
	return []typeRow{
		{"a2-highgpu-1g", 1, "A100 40GB", true},
		{"a2-highgpu-2g", 2, "A100 40GB", true},
		{"a2-highgpu-4g", 4, "A100 40GB", true},
		{"a2-highgpu-8g", 8, "A100 40GB", true},
		{"a2-megagpu-16g", 16, "A100 40GB", true},
		{"a2-ultragpu-1g", 1, "A100 80GB", true},
		{"a2-ultragpu-2g", 2, "A100 80GB", true},
		{"a2-ultragpu-4g", 4, "A100 80GB", true},
		{"a2-ultragpu-8g", 8, "A100 80GB", true},
		{"a3-highgpu-1g", 1, "H100 80GB", true},
		{"a3-highgpu-2g", 2, "H100 80GB", true},
		{"a3-highgpu-4g", 4, "H100 80GB", true},
		{"a3-highgpu-8g a3-megagpu-8g", 8, "H100 80GB", true},
		{"a3-edgegpu-8g", 8, "H100 80GB", false},
		{"a3-ultragpu-8g", 8, "H200", true},
		{"a4-highgpu-8g", 8, "B200", true},
		{"a4x-highgpu-4g", 4, "GB200", false},
		{"g2-standard-4 g2-standard-8 g2-standard-12 g2-standard-16 g2-standard-32", 1, "L4", true},
		{"g2-standard-24", 2, "L4", true},
		{"g2-standard-48", 4, "L4", true},
		{"g2-standard-96", 8, "L4", true},
		{"g4-standard-6 g4-standard-12 g4-standard-24", 1, "RTX PRO 6000 Server", false},
		{"g4-standard-48", 1, "RTX PRO 6000 Server", true},
		{"g4-standard-96", 2, "RTX PRO 6000 Server", true},
		{"g4-standard-192", 4, "RTX PRO 6000 Server", true},
		{"g4-standard-384", 8, "RTX PRO 6000 Server", true},
	}
}

// azureTypes are Microsoft's: https://learn.microsoft.com/azure/virtual-machines/sizes/overview; those of eight GPUs also in
// pkg/agent/datamodel/gpu_components.go, FabricManagerGPUSizes, of https://github.com/Azure/AgentBaker.
func azureTypes() []typeRow {
	return []typeRow{
		{"Standard_NC4as_T4_v3 Standard_NC8as_T4_v3 Standard_NC16as_T4_v3", 1, "T4", true},
		{"Standard_NC64as_T4_v3", 4, "T4", true},
		{"Standard_NC6s_v3", 1, "V100 PCIe 16GB", false},
		{"Standard_NC12s_v3", 2, "V100 PCIe 16GB", false},
		{"Standard_NC24s_v3 Standard_NC24rs_v3", 4, "V100 PCIe 16GB", false},
		{"Standard_NC24ads_A100_v4", 1, "A100 PCIe 80GB", true},
		{"Standard_NC48ads_A100_v4", 2, "A100 PCIe 80GB", true},
		{"Standard_NC96ads_A100_v4", 4, "A100 PCIe 80GB", true},
		{"Standard_NC40ads_H100_v5", 1, "H100 NVL 94GB", true},
		{"Standard_NC80adis_H100_v5", 2, "H100 NVL 94GB", true},
		{"Standard_NCC40ads_H100_v5", 1, "H100 NVL 94GB", false},
		{"Standard_ND40rs_v2", 8, "V100 32GB", false},
		{"Standard_ND96asr_v4", 8, "A100 40GB", true},
		{"Standard_ND96amsr_A100_v4", 8, "A100 80GB", true},
		{"Standard_ND96is_H100_v5 Standard_ND96isr_H100_v5", 8, "H100 80GB", true},
		{"Standard_ND96is_H200_v5 Standard_ND96isr_H200_v5", 8, "H200", true},
		{"Standard_ND128isr_NDR_GB200_v6", 4, "GB200", false},
		{"Standard_ND128isr_GB300_v6", 4, "GB300", false},
		{"Standard_NV12s_v3", 1, "M60", false},
		{"Standard_NV24s_v3", 2, "M60", false},
		{"Standard_NV48s_v3", 4, "M60", false},
		{"Standard_NV6ads_A10_v5 Standard_NV12ads_A10_v5 Standard_NV18ads_A10_v5", 1, "A10", true},
		{"Standard_NV36ads_A10_v5 Standard_NV36adms_A10_v5", 1, "A10", true},
		{"Standard_NV72ads_A10_v5", 2, "A10", true},
	}
}
