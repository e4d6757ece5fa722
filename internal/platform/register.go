// SPDX-License-Identifier: Apache-2.0

package platform

// The register: a new platform, system, tool or kind of node is a value in its owner's file and a
// name here.

// All lists all platforms, the narrower ones first: Detect takes the first that matches.
func All() []Platform {
	return []Platform{
		eks, eksHybrid, eksUbuntu, eksAL2, aksFlex, aks, gke, oke,
		microK8s, k8sSnap, k3s, rke2, k0s,
	}
}

// Systems lists the systems.
func Systems() []System { return []System{cos, bottlerocket, talos} }

// Tools lists the tools.
func Tools() []Tool { return []Tool{karpenter, eksctl} }

// AllSealed lists the narrower kinds first: EKS Auto Mode's nodes run Bottlerocket.
func AllSealed() []Sealed {
	return []Sealed{eksAuto, bottlerocketNode, eksAL2Node, autopilot, talosNode}
}

// Nodes lists the kinds of nodes of docs/who-owns-what.md.
func Nodes() []Node {
	named := func(name, id, system string) Node {
		n := NodeOf(id, system)
		n.Name = name
		return n
	}
	return []Node{
		named("EKS, AL2023", "eks", ""),
		named("EKS, Ubuntu", "eks-ubuntu", ""),
		named("EKS, Bottlerocket", "", "bottlerocket"),
		named("AKS", "aks", ""),
		named("GKE, Container-Optimized OS", "gke", "cos"),
		named("GKE, Ubuntu", "gke", "ubuntu"),
		kubeadm,
		named("K3s", "k3s", ""),
		named("RKE2", "rke2", ""),
		named("k0s", "k0s", ""),
		named("MicroK8s", "microk8s", ""),
		named("Canonical Kubernetes", "k8s", ""),
		openShift,
		named("Talos", "", "talos"),
	}
}
