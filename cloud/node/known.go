// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import "path"

// A Known is a key of the Node object that gpuadm writes or reads, for people who find it there.
type Known struct {
	Key  string // * is any text without a slash
	Is   string // label, taint, condition, annotation, resource
	What string
	By   string // who writes it
	Try  string // what to type
}

// KnownKeys lists them: the exact ones first.
func KnownKeys() []Known {
	const show, status = "kubectl get node NODE -o yaml", "gpuadm status"
	return []Known{
		{GPUReady, "condition", "True while gpuadm has verified driver, engine and GPUs since the last boot; its message says what is missing.", "gpuadm in its stage ready, by kubelet's identity or the DaemonSet's", status},
		{labelRecord, "annotation", "The labels that gpuadm has put on this Node, so that it can take off those that node.toml no longer asks for.", "gpuadm", show},
		{taintRecord, "annotation", "The startup taints that gpuadm has put on this Node, so that none is forgotten when node.toml changes.", "gpuadm", show},
		{gpuRecord, "annotation", "The PCI addresses of the GPUs that the node was last ready with: one that is missing after a reboot is noticed by it.", "gpuadm", status},
		{cordonedBy, "annotation", "gpuadm has cordoned this Node while a change of its GPUs is made, since that time, and uncordons it. A cordon without it is an operator's.", "gpuadm, with policy = \"drain\" in [disruption]", "gpuadm apply; policy in [disruption]"},
		{"kubernetes.io/config.mirror", "annotation", "On a pod: kubelet has it of a file on the machine. No drain evicts it.", "kubelet", "ls /etc/kubernetes/manifests"},
		{autoscalerTaint().Key, "taint", "Keeps pods away until the GPUs are ready. cluster-autoscaler counts such a node as one that will soon be ready.", "kubelet, at the registration, as gpuadm has configured it; gpuadm takes it off", "startup_taint in [node]; " + status},
		{failureTaint().Key, "taint", "gpuadm could not make the GPUs ready. cluster-autoscaler may make another node meanwhile.", "gpuadm, in place of the startup taint", status + "; then gpuadm apply"},
		{karpenterTaint().Key, "taint", "Keeps pods away until the GPUs are ready, on nodes of Karpenter whose NodePool names it in startupTaints.", "kubelet, at the registration; gpuadm takes it off", "startup_taint in [node]; " + status},
		{"karpenter.sh/unregistered", "taint", "Karpenter made this node and has not finished it. gpuadm knows Karpenter's nodes by it and leaves it alone.", "Karpenter", "kubectl get nodeclaims"},
		{"karpenter.sh/nodepool", "label", "The NodePool that made this node. gpuadm knows Karpenter's nodes by it.", "Karpenter", "kubectl get nodepools"},
		{MIGConfig, "label", "The name of the MIG layout that the node shall have. With follow_label in [mig] gpuadm follows it.", "an operator or a scheduler", "kubectl label node NODE --overwrite " + MIGConfig + "=LAYOUT; gpuadm mig"},
		{migState, "label", "How far the change of the MIG layout is: pending, rebooting, success or failed.", "gpuadm with follow_label, else NVIDIA's MIG manager", status},
		{migManager, "label", "true: the GPU Operator runs its MIG manager on this node, and gpuadm does not follow the label beside it.", "the GPU Operator or an operator", "gpuadm owners"},
		{PluginConfigLabel, "label", "Which entry of its ConfigMap the device plugin uses on this node.", "gpuadm, by [sharing]", "gpuadm manifest device-plugin"},
		{gpuPresent, "label", "The node has an NVIDIA GPU. NVIDIA's charts and the GPU Operator place their pods by it.", "gpuadm, the GPU Operator, Node Feature Discovery", "gpu_labels in [node]"},
		{"nvidia.com/gpu", "resource", "How many GPUs pods can ask for: as allocatable of the Node. The same key is often a taint that keeps pods without GPUs away.", "NVIDIA's device plugin, by kubelet", "kubectl describe node NODE; gpuadm explain insufficient-gpu"},
		{"nvidia.com/gpu-driver-upgrade-state", "label", "The GPU Operator manages the driver here. gpuadm leaves it alone.", "the GPU Operator", "gpuadm owners"},
		{"nvidia.com/gfd.timestamp", "label", "When GPU Feature Discovery last wrote its labels. gpuadm leaves it out: it would change at each look.", "GPU Feature Discovery", "gpuadm owners"},
		{"k8s.amazonaws.com/accelerator", "label", "The kind of GPU. cluster-autoscaler on AWS waits for the device plugin of nodes that have it.", "gpuadm, at the registration", "gpu_labels in [node]"},
		{"kubernetes.azure.com/accelerator", "label", "The kind of GPU of an AKS pool. gpuadm leaves it to AKS.", "AKS", "az aks nodepool show"},
		{"node.kubernetes.io/exclude-from-external-load-balancers", "label", "Load balancers of the cloud leave this node out. [node] labels may set it.", "an operator", "labels in [node]"},
		{"node.kubernetes.io/exclude-disruption", "label", "Counts for tools that disrupt nodes: they leave this one out. [node] labels may set it.", "an operator", "labels in [node]"},
		{"node.kubernetes.io/instance-type", "label", "The machine's type in its cloud. gpuadm compares the GPUs that it finds with those of the type.", "kubelet, as the cloud says", "gpuadm facts"},
		{probeLabel, "label", "gpuadm tries to set it as its DaemonSet's account, and the cluster's policy must refuse that. It is never on a Node.", "no account may", "gpuadm daemonset prints the policy"},
		{"readiness.k8s.io/*", "taint", "The node readiness controller puts taints of this domain on and off by conditions of the Node.", "the node readiness controller, by its rules", "kubectl get nodereadinessrules"},
		{"nvidia.com/gpu.deploy.*", "label", "The GPU Operator runs the named component on this node. paused-for-mig-change: it waits until a MIG change is made.", "the GPU Operator; gpuadm pauses it during a MIG change", "gpuadm owners"},
		{"nvidia.com/mig-*.product", "label", "The GPU and profile of these MIG partitions, with the strategy mixed.", asGFD, "gpuadm mig"},
		{"nvidia.com/mig-*.count", "label", "How many partitions of this profile the node has.", asGFD, "gpuadm mig"},
		{"nvidia.com/mig-*.replicas", "label", "How many pods share one of these partitions; 1: they are not shared.", asGFD, "strategy in [sharing]"},
		{"nvidia.com/mig-*.sharing-strategy", "label", "How pods share one of these partitions: none, time-slicing or mps.", asGFD, "strategy in [sharing]"},
		{"nvidia.com/mig-*.memory", "label", "The memory of one of these partitions, in MiB.", asGFD, "gpuadm mig profiles"},
		{"nvidia.com/mig-*.multiprocessors", "label", "How many multiprocessors one of these partitions has.", asGFD, "gpuadm mig profiles"},
		{"nvidia.com/mig-*.slices.*", "label", "How many slices one of these partitions has: gi memory and compute, ci compute alone.", asGFD, "gpuadm mig profiles"},
		{"nvidia.com/mig-*.engines.*", "label", "How many copy engines, decoders and the like one of these partitions has.", asGFD, "gpuadm mig profiles"},
		{"nvidia.com/mig-*", "resource", "How many partitions of this MIG profile pods can ask for, with the strategy mixed.", "NVIDIA's device plugin, by kubelet", "kubectl describe node NODE; gpuadm mig"},
		{"nvidia.com/mig.capable", "label", "Whether a GPU of the node can be partitioned by MIG.", asGFD, "gpuadm mig"},
		{"nvidia.com/mig.strategy", "label", "How the device plugin offers MIG partitions: single or mixed.", asGFD, "strategy in [sharing]"},
		{"nvidia.com/mps.capable", "label", "Pods share GPUs by CUDA MPS here; the DaemonSet of its control daemon runs where this is true.", asGFD, "mps in [sharing]"},
		{"nvidia.com/gpu.product", "label", "The GPU's model. -SHARED: pods share it. -MIG-INVALID: the partitions do not fit the strategy single.", asGFD, "gpuadm facts"},
		{"nvidia.com/gpu.count", "label", "How many GPUs of the model the node has.", asGFD, "gpuadm facts"},
		{"nvidia.com/gpu.replicas", "label", "How many pods share one GPU; 1: GPUs are not shared; 0: all GPUs are partitioned.", asGFD, "time_slicing and mps in [sharing]"},
		{"nvidia.com/gpu.sharing-strategy", "label", "How pods share a GPU: none, time-slicing or mps.", asGFD, "[sharing] in node.toml"},
		{"nvidia.com/gpu.memory", "label", "The memory of one GPU, in MiB.", asGFD, "gpuadm facts"},
		{"nvidia.com/gpu.family", "label", "The GPU's architecture: ampere, hopper, blackwell.", asGFD, "gpuadm facts"},
		{"nvidia.com/gpu.machine", "label", "The machine's product name, as its firmware says it.", asGFD, "gpuadm facts"},
		{"nvidia.com/gpu.mode", "label", "compute: the GPUs drive no display; graphics: they can.", asGFD, "gpuadm facts"},
		{"nvidia.com/gpu.clique", "label", "The NVLink domain and the clique in it that the GPUs belong to. Pods of one job want the same.", asGFD, "gpuadm facts"},
		{"nvidia.com/gpu.compute.*", "label", "The GPU's compute capability, which CUDA programs are built for.", asGFD, "gpuadm facts"},
		{"nvidia.com/gpu.multiprocessors", "label", "With the strategy single: how many multiprocessors each partition has.", asGFD, "gpuadm mig profiles"},
		{"nvidia.com/gpu.slices.*", "label", "With the strategy single: how many slices each partition has.", asGFD, "gpuadm mig profiles"},
		{"nvidia.com/gpu.engines.*", "label", "With the strategy single: how many engines of this kind each partition has.", asGFD, "gpuadm mig profiles"},
		{"nvidia.com/cuda.*", "label", "A part of the driver's version, or of the newest CUDA that it supports.", asGFD, "nvidia-smi; gpuadm facts"},
		{"nvidia.com/vgpu.*", "label", "The node is a guest with a part of a GPU (vGPU): which driver the host has.", asGFD, "gpuadm facts"},
	}
}

const asGFD = "gpuadm, in the words of GPU Feature Discovery; where that runs it writes them itself"

// Know returns what is known of a key.
func Know(key string) (Known, bool) {
	for _, k := range KnownKeys() {
		if ok, _ := path.Match(k.Key, key); ok {
			return k, true
		}
	}
	return Known{}, false
}
