// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/gke"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Sealed is a kind of node that gpuadm cannot prepare, since its owner provides it as a whole. The
// clouds' pages in docs say the same.
type Sealed struct {
	Name string
	Sign func(facts.Facts) string // the sign that the machine is of this kind; "" if it is not
	Why  string
	Use  string // what to use instead
}

// AllSealed lists the narrower kinds first: EKS Auto Mode's nodes run Bottlerocket.
func AllSealed() []Sealed {
	system := func(id string) func(facts.Facts) string {
		return func(f facts.Facts) string {
			if f.OS.ID != id {
				return ""
			}
			return "ID=" + id + " in os-release"
		}
	}
	return []Sealed{
		// If the label is not on kubelet's command line, the next kind matches. Sources:
		// https://docs.aws.amazon.com/eks/latest/userguide/automode.html (label, no access,
		// read-only root, GPU drivers and plugin); aws/agent-toolkit-for-aws, eks-auto-mode.md;
		// kubernetes-sigs/aws-ebs-csi-driver, charts (the label).
		{
			Name: "EKS Auto Mode",
			Sign: autoMode,
			Why:  "AWS brings the driver and the device plugin, the root is read-only, and AWS allows no changes",
			Use:  "EKS Auto Mode's own GPU support, or a managed node group or a NodePool of your own Karpenter with an AL2023 image",
		},
		// Sources: bottlerocket-os/bottlerocket, SECURITY_FEATURES.md (dm-verity, /etc made at each
		// boot, SELinux, no shell); bottlerocket-os/bottlerocket-core-kit at a10182f9,
		// packages/release/release.spec; for the settings
		// https://bottlerocket.dev/en/os/1.54.x/api/settings/kubelet-device-plugins.
		{
			Name: "Bottlerocket",
			Sign: system("bottlerocket"),
			Why:  "its root is sealed, its files are made of its API's settings, and its NVIDIA variants bring driver, toolkit and device plugin",
			Use:  "an NVIDIA variant of Bottlerocket with settings.kubelet-device-plugins.nvidia for partitions and sharing, or an AL2023 image",
		},
		// Sources: awslabs/amazon-eks-ami, issue 2545 (no images since November 2025);
		// eksctl-io/eksctl, pull 8714 (the system ended in June 2026).
		{
			Name: "EKS with Amazon Linux 2",
			Sign: amazonLinux2,
			Why:  "AWS has ended these images and the system, and no newer driver is made for it",
			Use:  "an AL2023 image",
		},
		// Sources for the name: GoogleContainerTools/kpt-config-sync ("only Autopilot clusters have
		// nodes with the prefix gk3-");
		// https://docs.cloud.google.com/kubernetes-engine/docs/concepts/autopilot-security for the
		// rest.
		{
			Name: "GKE Autopilot",
			Sign: autopilot,
			Why:  "Google brings the driver and the device plugin, and Autopilot rejects pods that change the machine, unless they are allowlisted",
			Use:  "GKE Autopilot's own GPU support, or an Ubuntu node pool of a Standard cluster",
		},
		// Sources: siderolabs/talos at ad8823176, Dockerfile and internal/app/machined (its own
		// init); https://talos.dev/latest/ talos-guides/configuration/system-extensions (read-only
		// root); siderolabs/extensions at 26822f5, nvidia-gpu.
		{
			Name: "Talos",
			Sign: system("talos"),
			Why:  "it has no systemd, its root is sealed, and its extensions bring driver, toolkit and CDI",
			Use:  "Talos's extensions nvidia-open-gpu-kernel-modules and nvidia-container-toolkit, and NVIDIA's device plugin",
		},
	}
}

// amazonLinux2 returns the sign of EKS's images before nodeadm.
func amazonLinux2(f facts.Facts) string {
	if f.Cloud.Managed != "eks-al2" {
		return ""
	}
	return f.Cloud.ManagedWhy
}

func autoMode(f facts.Facts) string {
	const label, auto = "eks.amazonaws.com/compute-type", "auto"
	if f.Kubelet.Labels[label] != auto {
		return ""
	}
	return "kubelet's label " + label + "=" + auto
}

func autopilot(f facts.Facts) string {
	if f.Cloud.Managed != "gke" || !strings.HasPrefix(f.Hostname, "gk3-") {
		return ""
	}
	return "the name " + f.Hostname + ", since only Autopilot's nodes begin with gk3-"
}

// sealed refuses a machine that gpuadm cannot prepare.
func sealed(f facts.Facts) []converge.Want {
	for _, kind := range AllSealed() {
		sign := kind.Sign(f)
		if sign == "" {
			continue
		}
		refuse := func(context.Context, host.View) (string, error) {
			return "cannot prepare a node of " + kind.Name + ": " + kind.Why + "\nthe sign: " + sign, nil
		}
		check := things.Check("gpuadm can prepare a node of "+kind.Name, refuse, sign, "use "+kind.Use)
		return []converge.Want{check}
	}
	return nil
}

// Limits says in one sentence what gpuadm cannot do on a node that it prepares only in part.
func Limits(f facts.Facts) []string {
	if f.OS.ID == "cos" {
		return []string{gke.OnCOS}
	}
	if limit := platform.Of(f.Cloud.Managed).Limit; limit != "" {
		return []string{limit}
	}
	return nil
}
