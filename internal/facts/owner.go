// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"slices"
	"strings"
)

// owner finds out which program rewrites the node's /etc/containerd/config.toml, at boot or when the node is provisioned:
// other changes to it do not last. It returns the sign seen.
// Flatcar and plain distributions rewrite nothing; nor does eks-hybrid, but when its administrator calls it.
func (l *look) owner(os OS) (owner, why string) {
	why = l.cloud.ManagedWhy
	switch l.cloud.Managed {
	case "eks":
		// https://github.com/awslabs/amazon-eks-ami, templates/al2023: both units write the file from a template.
		return "nodeadm", why
	case "eks-al2":
		// The same project's images of old copy this file over the engine's.
		if over := "/etc/eks/containerd/containerd-config.toml"; l.has(over) {
			return "eks-bootstrap", why + " and " + over
		}
	case "aks":
		// https://github.com/Azure/AgentBaker, parts/linux/cloud-init/artifacts/cse_config.sh: ensureContainerd.
		return "aks", why
	case "gke":
		return "gke", why
	}
	switch os.ID {
	case "bottlerocket", "cos", "talos":
		// /etc is made at each boot, from settings or from the image.
		return os.ID, "ID=" + os.ID + " in os-release"
	}
	return "", ""
}

// migOwner says who else partitions the GPUs. NVIDIA's GPU Operator runs nvidia-mig-manager in a pod, and its packages as
// a unit; both follow the node's label nvidia.com/mig.config and would undo what others do. The link to a container's log is there
// also while its pod does not run. Sources: https://github.com/NVIDIA/mig-parted, deployments; kubernetes,
// pkg/kubelet/kuberuntime/legacy.go.
func (l *look) migOwner() string {
	const unit, comm = "nvidia-mig-manager.service", "nvidia-mig-mana"
	if l.has("/etc/systemd/system/multi-user.target.wants/"+unit) || l.has("/etc/systemd/system/nvidia-gpu-reset.target.wants/"+unit) {
		return unit
	}
	if !l.v.Live() {
		return ""
	}
	if pid := l.process(comm); pid != "" {
		return "nvidia-mig-manager (process " + pid + ")"
	}
	const logs = "/var/log/containers"
	for _, name := range l.names(logs) {
		if strings.HasPrefix(name, "nvidia-mig-manager") {
			return "nvidia-mig-manager (" + logs + "/" + name + ")"
		}
	}
	return ""
}

// dynamicMIG says by which sign NVIDIA's DRA driver makes partitions as pods ask for them: its plugin runs with the gate DynamicMIG,
// which its chart hands over in the environment. Sources: kubernetes-sigs/dra-driver-nvidia-gpu, pkg/featuregates/featuregates.go and
// deployments/helm/dra-driver-nvidia-gpu/templates/kubeletplugin.yaml.
func (l *look) dynamicMIG() string {
	if !l.v.Live() {
		return ""
	}
	pid := l.process("gpu-kubelet-plu") // gpu-kubelet-plugin
	for _, variable := range strings.Split(l.attr("/proc/"+pid+"/environ"), "\x00") {
		gates, is := strings.CutPrefix(variable, "FEATURE_GATES=")
		if is && slices.Contains(strings.Split(gates, ","), "DynamicMIG=true") {
			return "process " + pid
		}
	}
	return ""
}
