// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package explain

// cluster has what kubelet, the scheduler and NVIDIA's device plugin print.
func cluster() []Text {
	return []Text{
		{
			Name: "insufficient-gpu", By: "the scheduler", Phrases: []string{"insufficient nvidia com"},
			What:    "No node has so many free GPUs of this name: all are taken, or kubelet offers none because the device plugin does not run there.",
			Matters: "The pod stays Pending.",
			Try:     []string{"kubectl describe node NODE | grep -A9 Allocatable", "on the node: gpuadm status; the device plugin's log says why it offers none"},
			Sources: []string{"https://github.com/NVIDIA/k8s-device-plugin/issues/283", "https://github.com/NVIDIA/k8s-device-plugin/issues/348"},
		},
		{
			Name: "allocate-unavailable", By: "kubelet", Phrases: []string{"allocate failed due to requested number of devices unavailable"},
			What:    "kubelet counts fewer free devices than the scheduler did: the device plugin has not registered again after a restart, or pods that ended hold devices.",
			Matters: "The pod fails with UnexpectedAdmissionError and is not started again by itself.",
			Try:     []string{"delete the failed pod; its owner makes another", "wait until the device plugin runs again on the node: kubectl describe node; if each new pod still fails: sudo systemctl restart kubelet"},
			Sources: []string{"https://github.com/kubernetes/kubernetes/issues/130145", "https://github.com/defenseunicorns/leapfrogai/issues/346"},
		},
		{
			Name: "unhealthy-devices", By: "kubelet", Phrases: []string{"no healthy devices present cannot allocate unhealthy devices"},
			What:    "The device plugin reported its devices as unhealthy, or has not come back since kubelet started.",
			Matters: "No pod with GPUs starts on the node.",
			Try:     []string{"the log of the device plugin's pod names the Xid or the error", "nvidia-smi; dmesg | grep -i xid"},
			Sources: []string{"https://github.com/trueforge-org/truecharts/issues/19201", "https://github.com/kubernetes/kubernetes/issues/125579"},
		},
		{
			Name: "cgroup-drivers", By: "kubelet", Phrases: []string{"kubelet cgroup driver", "is different from"},
			What:    "kubelet and the container engine manage cgroups in two ways: systemd and cgroupfs.",
			Matters: "kubelet does not start.",
			Try:     []string{"cgroupDriver: systemd in kubelet's config.yaml; SystemdCgroup = true in containerd's options of runc and nvidia", "drain the node first: its containers must be made again; then restart the engine and kubelet"},
			Sources: []string{"https://github.com/kubernetes/website/issues/8777", "https://github.com/aenix-io/kubefarm/issues/5"},
		},
		{
			Name: "plugin-no-nvml", By: "NVIDIA's device plugin", Phrases: []string{"nvml not detected could not load nvml library|failed to initialize nvml could not load nvml library"},
			What:    "The plugin's own container got no driver libraries: it does not run with the NVIDIA handler, or the host has no driver.",
			Matters: "The node offers no nvidia.com/gpu.",
			Try:     []string{"give the plugin's pods runtimeClassName: nvidia, or make the handler the default: set_as_default = true in [runtime]", "on the node: nvidia-smi; gpuadm status"},
			Sources: []string{"https://github.com/NVIDIA/k8s-device-plugin/issues/1371", "https://github.com/NVIDIA/k8s-device-plugin/issues/23"},
		},
		{
			Name: "plugin-nvml-init", By: "NVIDIA's device plugin", Phrases: []string{"unable to create plugin manager nvml init failed"},
			What:    "The plugin found no driver library in its container: no NVIDIA handler, or no right to the devices.",
			Matters: "The plugin's pod restarts over and over; the node offers no GPU.",
			Try:     []string{"runtimeClassName: nvidia in the plugin's chart; with deviceListStrategy=volume-mounts the pod needs SYS_ADMIN", "on the node: gpuadm status"},
			Sources: []string{"https://github.com/NVIDIA/k8s-device-plugin/issues/856", "https://github.com/NVIDIA/k8s-device-plugin/issues/1805"},
		},
		{
			Name: "plugin-no-devices", By: "NVIDIA's device plugin", Phrases: []string{"no devices found waiting indefinitely"},
			What:    "The plugin runs and sees no GPU in its container, and waits for ever.",
			Matters: "The node offers no nvidia.com/gpu, and nothing fails.",
			Try:     []string{"kubectl exec into the plugin's pod: ls /dev/nvidia*; nvidia-smi -L", "gpuadm status; then delete the plugin's pod, so that a new one searches for GPUs"},
			Sources: []string{"https://github.com/kaito-project/kaito/issues/2326", "https://github.com/NVIDIA/k8s-device-plugin/issues/414"},
		},
		{
			Name: "plugin-mig-single", By: "NVIDIA's device plugin", Phrases: []string{"at least one device with migenabled true was not configured correctly"},
			What:    "The strategy \"single\" needs the same partitions on all GPUs, and one in MIG mode has none.",
			Matters: "The node offers no GPU.",
			Try:     []string{"nvidia-smi mig -lgi; gpuadm plan mig", "or strategy = \"mixed\" in [sharing], and the same in the plugin's configuration"},
			Sources: []string{"https://github.com/NVIDIA/k8s-device-plugin/issues/253", "https://github.com/NVIDIA/k8s-device-plugin/pull/806"},
		},
		{
			Name: "plugin-mig-monitor", By: "NVIDIA's device plugin", Phrases: []string{"error getting device memory info"},
			What:    "The plugin's container may not read GPUs in MIG mode: it lacks NVIDIA_MIG_MONITOR_DEVICES=all or the right to the devices.",
			Matters: "The plugin does not start on nodes with MIG.",
			Try:     []string{"install the plugin by its Helm chart with migStrategy set, or add NVIDIA_MIG_MONITOR_DEVICES=all to its pods", "with NVIDIA's Container Toolkit from 1.18 on: a privileged pod"},
			Sources: []string{"https://github.com/NVIDIA/k8s-device-plugin/issues/399", "https://github.com/NVIDIA/k8s-device-plugin/issues/229", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1740"},
		},
	}
}
