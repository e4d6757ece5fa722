// SPDX-License-Identifier: Apache-2.0

// Package gke leaves the join to GKE's own scripts, and notes what they do and what gpuadm does.
package gke

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Wants wants nothing: GKE's own scripts make the machines of its pools nodes, and no other tool
// can. GKE signs kubelet's certificate only if the machine's virtual TPM proves that it is in one
// of the cluster's instance groups.
// Source: https://github.com/kubernetes/cloud-provider-gcp at 2d9194ef6^,
// cmd/gcp-controller-manager/node_csr_approver.go.
func Wants(_ spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if f.Cloud.Managed == "gke" {
		return nil, nil
	}
	return nil, &trouble.Error{
		What: "cannot join GKE: it takes no machines but those of its own node pools, and this is none of them",
		Because: []string{
			"GKE signs kubelet's certificate only for machines whose virtual TPM proves that they are in a pool's instance group",
			"a pool's key startup-script is GKE's own and cannot be used either",
		},
		Try: []string{
			"add a node pool with Ubuntu nodes and gpu-driver-version=disabled, and run gpuadm there as a DaemonSet: gpuadm daemonset",
			"or have the pool run gpuadm as each node starts: linuxNodeConfig.customNodeInit.initScript of GKE's API",
			"or leave [join] out, and join this machine to a cluster of your own: " + trouble.Command("apply --install") + ", then kubeadm join",
		},
	}
}

// noPlugin is the label that keeps GKE's own device plugin off a node. That plugin mounts
// /home/kubernetes/bin/nvidia into containers, where only Google's installer puts a driver: with
// another driver pods get no libcuda.
// Sources: GoogleCloudPlatform/container-engine-accelerators at 992db812,
// cmd/nvidia_gpu/nvidia_gpu.go (flag host-path) and device-plugin.yaml; NVIDIA/cloud-native-docs at
// 52dcb7b8, gpu-operator/google-gke.rst.
const noPlugin = "gke-no-default-nvidia-gpu-device-plugin"

// Begin returns the checks before the first change.
func Begin(s spec.Spec, f facts.Facts) []converge.Want {
	if f.Cloud.Managed != "gke" || f.OS.ID == "cos" || !s.Has("driver") || s.Driver.Version == "" || s.Driver.Owner == "other" {
		return nil
	}
	look := func(context.Context, host.View) (string, error) {
		if f.Kubelet.Labels[noPlugin] == "true" {
			return "", nil
		}
		return "cannot install a driver on this node of GKE: its pool lacks the label " + noPlugin + "=true, and GKE's own device plugin finds no driver but Google's", nil
	}
	return []converge.Want{things.Check("GKE's own device plugin stays off this node", look, "it gives pods Google's driver only",
		"make the pool again with --accelerator=type=TYPE,count=N,gpu-driver-version=disabled --node-labels="+noPlugin+"=true",
		"then deploy exactly one device plugin of your own, with CDI: two that register nvidia.com/gpu take it from each other",
		"or leave the driver to Google: owner = \"other\" in [driver]")}
}

// OnCOS is for nodes of Container-Optimized OS, in and outside of GKE.
const OnCOS = "Container-Optimized OS loads only modules that Google has signed: the driver is Google's to install, by gpu-driver-version=default or latest of the pool, or by the DaemonSet nvidia-driver-installer"

// Notes say what GKE's scripts and what gpuadm does on a pool's node.
func Notes(f facts.Facts) []string {
	if f.Cloud.Managed != "gke" {
		return nil
	}
	const joins = "GKE joins the machines of its pools itself (" // and the sign
	if f.OS.ID == "cos" {
		return []string{joins + f.Cloud.ManagedWhy + "); gpuadm verifies and labels"}
	}
	return []string{
		joins + f.Cloud.ManagedWhy + "); gpuadm does every stage but that",
		"the pool must say gpu-driver-version=disabled, or GKE installs a driver of its own beside ours",
		"the pool must carry the label " + noPlugin + "=true, or GKE's device plugin gives pods no driver; exactly one device plugin of your own, with CDI, must then be deployed",
		"GKE sets cloud.google.com/gke-accelerator, gke-gpu-partition-size, gke-gpu-sharing-strategy and the marks of spot nodes, and the taint nvidia.com/gpu=present: gpuadm leaves them alone",
	}
}
