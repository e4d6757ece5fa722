// SPDX-License-Identifier: Apache-2.0

package platform

var (
	talos = System{
		ID:      "talos",
		Title:   "Talos",
		Driver:  Driver{Title: "the Talos image's NVIDIA system extension"},
		Toolkit: "the Talos image's NVIDIA system extension",
		Kubelet: "Talos's machine configuration",
		// /etc is made at each boot, from settings.
		Engine: Engine{Writer: "talos", How: Entry},
		// Talos runs two containerds: Talos' own services use that of the usual file, and kubelet
		// uses that of this file. Sources: siderolabs/talos at ad8823176,
		// pkg/machinery/constants/constants.go (CRIContainerdConfig) and Dockerfile;
		// spegel-org/spegel's documentation on Talos.
		Config: "/etc/cri/containerd.toml",
	}
	// Sources: siderolabs/talos at ad8823176, Dockerfile and internal/app/machined (its own init);
	// https://talos.dev/latest/ talos-guides/configuration/system-extensions (read-only root);
	// siderolabs/extensions at 26822f5, nvidia-gpu.
	talosNode = Sealed{
		Name:   "Talos",
		System: "talos",
		Why:    "it has no systemd, its root is sealed, and its extensions bring driver, toolkit and CDI",
		Use:    "Talos's extensions nvidia-open-gpu-kernel-modules and nvidia-container-toolkit, and NVIDIA's device plugin",
	}
)
