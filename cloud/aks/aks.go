// SPDX-License-Identifier: Apache-2.0

// Package aks leaves the join to AKS's own scripts, and notes what they do and what gpuadm does.
package aks

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Wants leaves the machines of a pool to AKS's own scripts.
func Wants(f facts.Facts) ([]converge.Want, error) {
	switch f.Cloud.Managed {
	case "aks-flex":
		return nil, nil // AKS Flex Node's kubelet runs in a container, and its agent writes the files
	case "aks":
		return []converge.Want{provisioned(f.Booting)}, nil
	}
	return nil, &trouble.Error{
		What:    "cannot join AKS: this machine is in none of its node pools",
		Because: []string{"looked for /opt/azure/containers with AKS's scripts, and for a unit aks-node-controller.service"},
		Try:     []string{"add a GPU node pool: az aks nodepool add --gpu-driver none"},
	}
}

// Begin returns the checks before the first change. AKS's scripts write containerd's file, and at their end they remove the
// files of the image's driver, and so of any other driver with the same paths.
// Source: the same, ubuntu/cse_install_ubuntu.sh: cleanUpPrebakedGPUDriver; and cse_config.sh: ensureContainerd.
func Begin(s spec.Spec, f facts.Facts) []converge.Want {
	switch {
	case f.Cloud.Managed != "aks":
		return nil
	case f.Booting && s.Has("driver"):
		return []converge.Want{noDriverAtBoot()}
	}
	return []converge.Want{provisioned(f.Booting)}
}

// noDriverAtBoot refuses a deadlock at boot: gpuadm would wait for scripts that wait for kubelet, which waits for gpuadm.
func noDriverAtBoot() converge.Want {
	return things.Check("AKS's own scripts before the driver", func(_ context.Context, v host.View) (string, error) {
		if _, err := v.Stat(facts.AKSProvisioned); err == nil || !host.NotExist(err) {
			return "", err
		}
		return "", &trouble.Error{
			What:    "cannot touch the driver before AKS's own scripts have ended, and at a boot they wait for kubelet, which waits for gpuadm",
			Because: []string{facts.AKSProvisioned + " is not there"},
			Try:     []string{"on AKS run gpuadm as a DaemonSet", "or drop [driver] from the node.toml of the image"},
		}
	}, "they remove a driver of their image by its paths")
}

// provisioned wants AKS's scripts to have ended. They write kubelet's and containerd's files, and may install a driver: facts that
// gpuadm reads before that will change. But if kubelet waits for gpuadm at boot, the scripts wait too, since they start kubelet.
// Source: https://github.com/Azure/AgentBaker, parts/linux/cloud-init/artifacts/cse_main.sh, nodePrep: ensureKubelet.
func provisioned(booting bool) converge.Want {
	return things.Check("AKS's own scripts have set this machine up", func(_ context.Context, v host.View) (string, error) {
		switch _, err := v.Stat(facts.AKSProvisioned); {
		case err == nil:
			return "", nil
		case !host.NotExist(err):
			return "", err
		case !v.Live():
			return "", host.FirstBoot
		case booting:
			return "", host.Later{Until: "once AKS's own scripts have run"}
		}
		return "", trouble.Wait{
			For: "AKS's own scripts to have set this machine up (" + facts.AKSProvisioned + " is not there)",
			Try: []string{"tail /var/log/azure/cluster-provision.log"},
		}
	}, "AKS writes kubelet's and containerd's files")
}

// Automatic applies to every node of AKS, since nothing on a node shows that its cluster is AKS Automatic. Sources: MicrosoftDocs/
// azure-aks-docs at fb060abe6, articles/aks/deployment-safeguards.md; https://github.com/Azure/AKS/issues/5442, and pull 5798 (2026-05-29).
const Automatic = "in AKS Automatic the deployment safeguards refuse gpuadm's pod until its namespace is excluded: az aks safeguards update --level Enforce --excluded-ns gpuadm; gpuadm has not been tested there"

// Notes say what AKS's own tools do and what gpuadm does.
func Notes(s spec.Spec, f facts.Facts) (notes []string) {
	switch {
	case f.Cloud.Managed == "aks-flex":
		return []string{"AKS Flex Node joins this machine (" + f.Cloud.ManagedWhy + ") and writes the files of its kubelet; the driver is ours"}
	case f.Cloud.Managed != "aks":
		return nil
	}
	notes = []string{
		"AKS joins the machines of its pools itself (" + f.Cloud.ManagedWhy + "): its scripts own /etc/containerd/config.toml, /etc/default/kubelet, kubelet.service.d and /etc/kubernetes, and gpuadm leaves those alone",
		"they install a driver too, unless the pool was made with --gpu-driver none or its machines carry the tag SkipGpuDriverInstall=true",
	}
	if _, taints, err := node.Registration(s, f); err == nil && len(taints) > 0 {
		notes = append(notes, fmt.Sprintf("the pool's nodeInitializationTaints must name %s, and not nodeTaints: AKS restores those each time they are removed", kubelet.TaintTexts(taints)))
	}
	return notes
}
