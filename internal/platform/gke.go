// SPDX-License-Identifier: Apache-2.0

package platform

import "github.com/gpuadm/gpuadm/internal/trouble"

// gke is a machine of a pool. GKE's own scripts make it a node, and no other tool can: GKE signs
// kubelet's certificate only if the machine's virtual TPM proves that it is in one of the cluster's
// instance groups. Sources: https://github.com/kubernetes/cloud-provider-gcp at 2d9194ef6^,
// cmd/gcp-controller-manager/node_csr_approver.go;
// https://github.com/kubernetes/kubernetes/tree/v1.34.4/cluster/gce/gci: GKE's own scripts come
// from its configure-helper.sh.
var gke = Platform{
	Name:  "gke",
	Title: "GKE",
	Cloud: "gce",
	Signs: Signs{
		Every: []string{"/home/kubernetes"},
		One: []string{
			"kube-node-installation.service",
			"kube-node-configuration.service",
			"/home/kubernetes/kube-env",
		},
	},
	Join: Join{
		Method: "gke",
		Called: []string{"gcp", "gce", "google"},
		By:     "GKE",
		Closed: "it takes no machines but those of its own node pools, and this is none of them",
		Looked: []string{
			"GKE signs kubelet's certificate only for machines whose virtual TPM proves that they are in a pool's instance group",
			"a pool's key startup-script is GKE's own and cannot be used either",
		},
		Try: []string{
			"add a node pool with Ubuntu nodes and gpu-driver-version=disabled, and run gpuadm there as a DaemonSet: gpuadm daemonset",
			"or have the pool run gpuadm as each node starts: linuxNodeConfig.customNodeInit.initScript of GKE's API",
			"or leave [join] out, and join this machine to a cluster of your own: " + trouble.Command("apply --install") + ", then kubeadm join",
		},
		Notes: []string{
			"GKE joins the machines of its pools itself (%s); gpuadm does every stage but that",
			"the pool must say gpu-driver-version=disabled, or GKE installs a driver of its own beside ours",
			"the pool must carry the label " + gkeNoPlugin + "=true, or GKE's device plugin gives pods no driver; exactly one device plugin of your own, with CDI, must then be deployed",
			"GKE sets cloud.google.com/gke-accelerator, gke-gpu-partition-size, gke-gpu-sharing-strategy and the marks of spot nodes, and the taint nvidia.com/gpu=present: gpuadm leaves them alone",
		},
		Sealed:  []string{"GKE joins the machines of its pools itself (%s); gpuadm verifies and labels"},
		Kubelet: "/home/kubernetes/bin/kubelet",
	},
	// GKE's device plugin mounts the driver's files. Source: kubernetes/kubernetes,
	// cluster/gce/gci/node.yaml and configure-helper.sh;
	// https://github.com/cilium/cilium/pull/18486.
	Engine: Engine{Writer: "gke", How: NoNeed, Again: "GKE's configure-helper"},
	// GKE's installer puts the driver's libraries there, also on Ubuntu. Sources:
	// GoogleCloudPlatform/container-engine-accelerators at 992db812, nvidia-driver-installer/ubuntu
	// (daemonset.yaml: NVIDIA_INSTALL_DIR_HOST; entrypoint.sh: lib64);
	// https://cloud.google.com/kubernetes-engine/docs/how-to/gpus ("gpu-driver-version").
	Driver: Driver{
		Title:    "GKE's driver installer",
		Not:      "with gpu-driver-version=disabled",
		Files:    []string{"/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1"},
		TakeOver: "or take it over: make the pool again with gpu-driver-version=disabled (--accelerator=type=TYPE,count=N,gpu-driver-version=disabled). If you remove the driver from this node, GKE installs it again",
	},
	// Sources: https://cloud.google.com/kubernetes-engine/docs/how-to/gpus-multi;
	// GoogleCloudPlatform/container-engine-accelerators at 992db812, partition_gpu.
	MIG: MIG{
		Who:   "GKE",
		Label: "cloud.google.com/gke-gpu-partition-size",
		File:  "/etc/nvidia/gpu_config.json",
		Key:   "GPUPartitionSize",
		Ends:  "make a pool without gpu-partition-size: GKE partitions the GPUs when it makes the pool",
	},
	// GKE's plugin mounts /home/kubernetes/bin/nvidia into containers, where only Google's
	// installer puts a driver: with another driver pods get no libcuda. Sources:
	// GoogleCloudPlatform/container-engine-accelerators at 992db812, cmd/nvidia_gpu/nvidia_gpu.go
	// (flag host-path) and device-plugin.yaml; NVIDIA/cloud-native-docs at 52dcb7b8,
	// gpu-operator/google-gke.rst.
	Plugin: Plugin{
		Who:    "GKE",
		Ends:   "label the pool " + gkeNoPlugin + "=true",
		Off:    gkeNoPlugin,
		Driver: "Google's",
		OffTry: []string{
			"make the pool again with --accelerator=type=TYPE,count=N,gpu-driver-version=disabled --node-labels=" + gkeNoPlugin + "=true",
			"then deploy exactly one device plugin of your own, with CDI: two that register nvidia.com/gpu take it from each other",
			"or leave the driver to Google: owner = \"other\" in [driver]",
		},
	},
	// https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms and .../node-taints:
	// gke-spot, gke-provisioning, gke-accelerator.
	Labels: []string{
		"cloud.google.com/", "cloud.google.com.node-restriction.kubernetes.io/",
		"iam.gke.io/", "node.gke.io/",
	},
}

const gkeNoPlugin = "gke-no-default-nvidia-gpu-device-plugin"

// Sources for the name: GoogleContainerTools/kpt-config-sync ("only Autopilot clusters have nodes
// with the prefix gk3-");
// https://docs.cloud.google.com/kubernetes-engine/docs/concepts/autopilot-security for the rest.
var autopilot = Sealed{
	Name:     "GKE Autopilot",
	Platform: "gke",
	Host:     "gk3-",
	HostWhy:  "only Autopilot's nodes begin with gk3-",
	Why:      "Google brings the driver and the device plugin, and Autopilot rejects pods that change the machine, unless they are allowlisted",
	Use:      "GKE Autopilot's own GPU support, or an Ubuntu node pool of a Standard cluster",
}
