// SPDX-License-Identifier: Apache-2.0

package platform

var (
	// /etc is made at each boot, from settings.
	bottlerocket = System{
		ID:      "bottlerocket",
		Title:   "Bottlerocket",
		Engine:  Engine{Writer: "bottlerocket", How: Entry},
		Driver:  Driver{Title: "the Bottlerocket variant's image"},
		Toolkit: "the Bottlerocket variant's image",
		Kubelet: "Bottlerocket's API",
		// bottlerocket-os/bottlerocket-core-kit, packages/nvidia-migmanager (the unit) and
		// sources/nvidia-migmanager/README.md (it also switches MIG off); for the setting
		// https://bottlerocket.dev/en/os/1.54.x/api/settings/kubelet-device-plugins.
		MIG: MIG{
			Who:  "Bottlerocket",
			Unit: true,
			Ends: "apiclient set settings.kubelet-device-plugins.nvidia.device-partitioning-strategy=none leaves GPUs whole; no other tool can partition them there",
		},
		// packages/nvidia-k8s-device-plugin, and the template of its DRA driver's unit, which
		// conflicts with the plugin's.
		Plugin: Plugin{
			Who:   "Bottlerocket",
			Units: []string{"nvidia-k8s-device-plugin.service", "nvidia-dra-driver-gpu.service"},
			Ends:  "use a variant without -nvidia",
		},
	}
	// Sources: bottlerocket-os/bottlerocket, SECURITY_FEATURES.md (dm-verity, /etc made at each
	// boot, SELinux, no shell); bottlerocket-os/bottlerocket-core-kit at a10182f9,
	// packages/release/release.spec; for the settings
	// https://bottlerocket.dev/en/os/1.54.x/api/settings/kubelet-device-plugins.
	bottlerocketNode = Sealed{
		Name:   "Bottlerocket",
		System: "bottlerocket",
		Why:    "its root is sealed, its API's settings generate its files, and its NVIDIA variants bring driver, toolkit and device plugin",
		Use:    "an NVIDIA variant of Bottlerocket with settings.kubelet-device-plugins.nvidia for partitions and sharing, or an AL2023 image",
	}
)
