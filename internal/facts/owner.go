// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import "strings"

// owner finds out who writes the node's /etc/containerd/config.toml anew, at boot or when the node is provisioned, so
// that what others write there does not last. It returns the signs seen, and where that owner takes changes from.
// Flatcar and plain distributions rewrite nothing.
func (l *look) owner(os OS) (owner, why, edit string) {
	for _, o := range [...]struct {
		name  string
		edit  string
		every []string // files and folders that must be there
		one   []string // units or files, of which one must
	}{
		// https://github.com/awslabs/amazon-eks-ami, templates/al2023: both units write the file from a template.
		{"nodeadm", "/etc/eks/nodeadm.d", []string{"/usr/bin/nodeadm"}, []string{"nodeadm-run.service", "nodeadm-config.service"}},
		// The same project's images of old copy this file over the engine's.
		{"eks-bootstrap", "/etc/eks/containerd/containerd-config.toml", []string{"/etc/eks/bootstrap.sh", "/etc/eks/containerd/containerd-config.toml"}, nil},
		// https://github.com/Azure/AgentBaker, parts/linux/cloud-init/artifacts/cse_config.sh: ensureContainerd.
		{"aks", "", []string{"/opt/azure/containers"}, []string{
			"/opt/azure/containers/provision.sh", "/opt/azure/containers/provision_start.sh",
			"/opt/azure/containers/provision.complete", "aks-node-controller.service",
		}},
		// https://github.com/kubernetes/kubernetes/tree/master/cluster/gce/gci: configure-helper.sh, which GKE's own
		// scripts come from.
		{"gke", "", []string{"/home/kubernetes"}, []string{"kube-node-installation.service", "kube-node-configuration.service", "/home/kubernetes/kube-env"}},
	} {
		if signs := l.signs(o.every, o.one); signs != "" {
			return o.name, signs, o.edit
		}
	}
	switch os.ID {
	case "bottlerocket", "cos", "talos":
		// /etc is made at each boot, from settings or from the image.
		return os.ID, "ID=" + os.ID + " in os-release", ""
	}
	return "", "", ""
}

// signs names what was seen, "" if not all that must be there is.
func (l *look) signs(every, one []string) string {
	for _, name := range every {
		if !l.has(name) {
			return ""
		}
	}
	if len(one) == 0 {
		return strings.Join(every, " and ")
	}
	for _, name := range one {
		if strings.HasPrefix(name, "/") && l.has(name) {
			return name
		}
		if !strings.HasPrefix(name, "/") && l.unitThere(name) {
			return every[0] + " and " + name
		}
	}
	return ""
}

// migOwner says who else partitions the GPUs. NVIDIA's GPU Operator runs nvidia-mig-manager in a pod, and its packages as
// a unit; both follow the node's label nvidia.com/mig.config and would undo what others do.
// Source: https://github.com/NVIDIA/mig-parted, deployments.
func (l *look) migOwner() string {
	const unit, comm = "nvidia-mig-manager.service", "nvidia-mig-mana" // the kernel keeps 15 letters: proc(5), comm
	if l.has("/etc/systemd/system/multi-user.target.wants/"+unit) || l.has("/etc/systemd/system/nvidia-gpu-reset.target.wants/"+unit) {
		return unit
	}
	if !l.v.Live() {
		return ""
	}
	for _, pid := range l.names("/proc") {
		if pid[0] >= '1' && pid[0] <= '9' && l.attr("/proc/"+pid+"/comm") == comm {
			return "nvidia-mig-manager (process " + pid + ")"
		}
	}
	return ""
}
