// SPDX-License-Identifier: Apache-2.0

package platform

var (
	// /etc is made at each boot, from settings.
	bottlerocket = System{
		ID:     "bottlerocket",
		Engine: Engine{Writer: "bottlerocket", How: Entry},
	}
	// Sources: bottlerocket-os/bottlerocket, SECURITY_FEATURES.md (dm-verity, /etc made at each boot,
	// SELinux, no shell); bottlerocket-os/bottlerocket-core-kit at a10182f9,
	// packages/release/release.spec; for the settings
	// https://bottlerocket.dev/en/os/1.54.x/api/settings/kubelet-device-plugins.
	bottlerocketNode = Sealed{
		Name:   "Bottlerocket",
		System: "bottlerocket",
		Why:    "its root is sealed, its files are made of its API's settings, and its NVIDIA variants bring driver, toolkit and device plugin",
		Use:    "an NVIDIA variant of Bottlerocket with settings.kubelet-device-plugins.nvidia for partitions and sharing, or an AL2023 image",
	}
)
