// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package explain

// driver has what NVIDIA's own programs print on the host.
func driver() []Text {
	return []Text{
		{
			Name: "nvml-mismatch", By: "nvidia-smi, nvidia-container-cli", Phrases: []string{"driver library version mismatch"},
			What:    "The NVIDIA module in the kernel is of another version than the libraries: an upgrade replaced the files while the module stayed loaded.",
			Matters: "Nothing new can use a GPU: nvidia-smi, the device plugin and containers that start all fail. Programs that run already continue.",
			Try:     []string{"compare: cat /proc/driver/nvidia/version; modinfo -F version nvidia", "gpuadm plan driver: it shows what loads the new module; else drain the node and reboot"},
			Sources: []string{"https://github.com/intel/llvm/issues/17614", "https://github.com/canonical/ubuntu-server-documentation/pull/369"},
		},
		{
			Name: "smi-no-driver", By: "nvidia-smi", Phrases: []string{"failed because it couldn t communicate with the nvidia driver"},
			What:    "The module nvidia is not loaded, most often because it was not built for the kernel that runs, or was refused by Secure Boot.",
			Matters: "The machine has no working GPU.",
			Try:     []string{"find out why: modprobe nvidia; dmesg | grep -i nvrm; dkms status", "gpuadm plan driver"},
			Sources: []string{"https://github.com/NVIDIA/nvidia-docker/issues/988", "https://github.com/elementary/os-patches/issues/155"},
		},
		{
			Name: "nvml-unknown-error", By: "nvidia-smi in a container", Phrases: []string{"failed to initialize nvml unknown error"},
			What:    "The container lost its right to the devices: systemd reloaded its units and reset the device rules of the container's cgroup.",
			Matters: "Running pods lose their GPUs whenever a package or an operator runs systemctl daemon-reload. The host itself works.",
			Try: []string{
				"restart the pod: it gets the devices again", "keep it from happening: links in /dev/char, which gpuadm makes in the stage toolkit (gpuadm plan toolkit)",
				"or use CDI: cdi = true in [runtime]",
			},
			Sources: []string{"https://github.com/NVIDIA/nvidia-container-toolkit/issues/1227", "https://github.com/NVIDIA/nvidia-docker/issues/1730"},
		},
		{
			Name: "device-handle", By: "nvidia-smi", Phrases: []string{"unable to determine the device handle for"},
			What:    "One GPU does not answer the driver any more: it fell off the PCI bus, or its start failed.",
			Matters: "nvidia-smi and the device plugin may fail for all GPUs because of the one.",
			Try:     []string{"find the Xid that came before: dmesg | grep -i xid", "drain the node and reboot; if it comes again, have the GPU reseated, then replaced"},
			Sources: []string{"https://github.com/NVIDIA/nvidia-docker/issues/1553", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/387"},
		},
		{
			Name: "gpu-lost", By: "NVML: device plugin, DCGM, nvidia-smi", Phrases: []string{"gpu is lost"},
			What:    "A GPU does not answer on the PCI bus any more.",
			Matters: "The device plugin cannot list any GPU while one is lost, so no pod starts on the node.",
			Try:     []string{"kubectl drain NODE, then reboot", "if it comes again: dmesg | grep -i xid, and the vendor's diagnostics"},
			Sources: []string{"https://github.com/NVIDIA/k8s-device-plugin/issues/231", "https://github.com/JosephKJ/OWOD/issues/81"},
		},
		{
			Name: "persistenced-no-devices", By: "nvidia-persistenced", Phrases: []string{"failed to query nvidia devices"},
			What:    "The daemon started before the module nvidia was loaded, or no driver works at all.",
			Matters: "Without the daemon the driver starts each GPU again for every program; settings are lost between programs.",
			Try:     []string{"modprobe nvidia && systemctl restart nvidia-persistenced", "gpuadm plan driver"},
			Sources: []string{"https://github.com/NVIDIA/ansible-role-nvidia-driver/issues/3", "https://github.com/Bumblebee-Project/Bumblebee/issues/1093"},
		},
		{
			Name: "fabricmanager-version", By: "nv-fabricmanager", Phrases: []string{"fabric manager nvidia gpu driver interface version"},
			What:    "The fabric manager must have exactly the driver's version, and one of the two was upgraded alone.",
			Matters: "On boards with NVSwitches no CUDA program starts (error 802).",
			Try:     []string{"gpuadm plan driver: it installs both in one version", "by hand: the package nvidia-fabricmanager in the version of /proc/driver/nvidia/version"},
			Sources: []string{"https://github.com/NVIDIA/gpu-operator/issues/544", "https://github.com/siderolabs/pkgs/issues/720"},
		},
		{
			Name: "cuda-802", By: "CUDA programs", Phrases: []string{"system not yet initialized"},
			What:    "CUDA error 802: the GPUs are connected by NVSwitches, and the fabric is not up: the fabric manager does not run, or has failed.",
			Matters: "nvidia-smi works, and no CUDA program does.",
			Try:     []string{"systemctl status nvidia-fabricmanager; journalctl -u nvidia-fabricmanager", "fabricmanager = \"auto\" in [driver], then gpuadm apply driver"},
			Sources: []string{"https://github.com/huggingface/huggingface_hub/issues/4134", "https://github.com/aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop/issues/33"},
		},
		{
			Name: "mig-in-use", By: "nvidia-smi mig", Phrases: []string{"unable to destroy|failed to destroy", "in use by another client"},
			What:    "A process has the partition open: a pod, or a monitor such as DCGM, which nvidia-smi does not list.",
			Matters: "The MIG layout cannot change while it is open.",
			Try:     []string{"lsof /dev/nvidia* /dev/nvidia-caps/* names the processes", "gpuadm plan mig: it names who holds the partition; gpuadm apply mig --allow stop-clients ends host processes"},
			Sources: []string{"https://github.com/NVIDIA/DCGM/issues/95", "https://github.com/NVIDIA/DCGM/issues/276"},
		},
		{
			Name: "mig-permissions", By: "nvidia-smi mig", Phrases: []string{"failed to display|unable to create|failed to create|unable to enable", "insufficient permissions"},
			What:    "MIG needs root, and in a container CAP_SYS_ADMIN with /dev/nvidia-caps.",
			Matters: "Partitions cannot be listed or changed from there.",
			Try:     []string{"run it as root on the host: sudo nvidia-smi mig -lci", "gpuadm mig"},
			Sources: []string{"https://github.com/Project-HAMi/HAMi/issues/1044", "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html"},
		},
	}
}
