// SPDX-License-Identifier: Apache-2.0

package platform

var (
	// https://github.com/awslabs/amazon-eks-ami, templates/al2023: both units write kubelet's and
	// the engine's files from templates.
	eks = Platform{
		Name:  "eks",
		Title: "EKS",
		Cloud: "aws",
		Signs: Signs{
			Every: []string{"/usr/bin/nodeadm"},
			One:   []string{"nodeadm-run.service", "nodeadm-config.service"},
		},
		Join: Join{
			Method: "eks",
			Called: []string{"aws", "ec2", "amazon"},
			By:     "nodeadm",
			Own:    true,
			Token:  "a token of the machine's role for an EKS cluster",
			Gate:   true,
			// At each boot nodeadm-config.service reads the user data, before cloud-init, and notes
			// what it resolved; nodeadm-run.service, after cloud-init, reads that together with the
			// files of a folder, writes the files of kubelet and containerd, and starts both. So
			// gpuadm writes a file in that folder, and makes nodeadm-run wait for gpuadm. Source:
			// templates/al2023/runtime/rootfs/etc/systemd/system, nodeadm/cmd/nodeadm/init.
			Unit:     "nodeadm-run.service",
			First:    "nodeadm-config.service", // it fails, for example, without the metadata service
			UnitFile: "/etc/systemd/system/nodeadm-run.service",
			Settings: "/etc/eks/nodeadm.d/50-gpuadm.yaml",
			Resolved: "/run/eks/nodeadm/config.json",
			Env:      "/etc/eks/kubelet/environment",
		},
		Driver: Driver{
			Title: "the EKS image",
			// templates/al2023/runtime/gpu at 81fec2e8, and pulls 2783, 2792 and 2819: the
			// accelerated images load the driver from archives of DKMS, and since 2026-09 from
			// prebuilt trees, which they mount over /usr. rpm names a proprietary package whichever
			// modules are loaded.
			Loaders:  []string{"nvidia-kmod-load.service", "nvidia-setup.service"},
			Not:      "in an image without NVIDIA in its name",
			TakeOver: "gpuadm cannot take it over here: use an image with the driver that you want, or one without a driver. An image that you make from an instance with GPUs keeps that instance's driver: make it from an instance without GPUs",
		},
		Toolkit: "the EKS image",
		Engine:  Engine{Writer: "nodeadm", How: Boot},
		// https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html;
		// eks.amazonaws.com/capacityType marks spot nodes.
		Labels: []string{"eks.amazonaws.com/", "topology.k8s.aws/"},
		// GKE and AKS set their own labels on their pools, and Karpenter sets its own everywhere.
		// EKS sets none. The label is that of cluster-autoscaler's cloudprovider/aws: GPULabel.
		Accelerator: "k8s.amazonaws.com/accelerator",
		// Sources: aws/eks-node-monitoring-agent, pkg/conditions/conditions.go and
		// docs/node-health-issues.adoc;
		// https://docs.aws.amazon.com/eks/latest/userguide/node-repair.html.
		Monitor: Monitor{
			Condition: "AcceleratedHardwareReady",
			Who:       "EKS's node monitoring agent",
			Repair:    "where it is enabled, EKS's node auto repair reboots or replaces the node after 10 minutes; Karpenter replaces it if its NodeRepair is on",
		},
	}
	// https://github.com/aws/eks-hybrid, internal/tracker: what `nodeadm install` has written on a
	// machine outside EC2.
	eksHybrid = Platform{
		Name:  "eks-hybrid",
		Title: "EKS Hybrid Nodes",
		Signs: Signs{Every: []string{"/opt/nodeadm/tracker"}},
		Join: Join{
			Method: "eks",
			By:     "nodeadm",
			// https://docs.aws.amazon.com/eks/latest/userguide/hybrid-nodes-nodeadm.html
			Init: "sudo nodeadm init --config-source file://nodeConfig.yaml",
		},
	}
	// Canonical's images: bootstrap.sh, which the user data runs, sets up the snap kubelet-eks, and
	// makes containerd's file of a template each time. Sources: bootstrap.sh of the image ("a
	// customized version of the Amazon bootstrap script", Canonical 2020);
	// canonical/ubuntu-cloud-docs issues 290, 317 and 389 (the template for --container-runtime
	// nvidia-container-runtime lacks what pods need); eksctl-io/eksctl,
	// pkg/nodebootstrap/assets/scripts/bootstrap.ubuntu.sh. The snap has an option node-labels,
	// which a former script of eksctl set in place of bootstrap.sh. No public source shows whether
	// the snap still adds it to the args that bootstrap.sh sets, so gpuadm does not set it.
	eksUbuntu = Platform{
		Name:  "eks-ubuntu",
		Title: "EKS with Ubuntu",
		Cloud: "aws",
		Signs: Signs{Every: []string{"/etc/eks/bootstrap.sh"}, OS: "ubuntu"},
		Join: Join{
			Method: "eks",
			By:     "EKS's bootstrap.sh",
			Left:   true,
			Notes: []string{
				"EKS's bootstrap.sh joins this machine (%s) and starts the snap kubelet-eks: driver, toolkit and handler are gpuadm's, kubelet's arguments are the script's and the snap's",
				"labels and taints that the node registers with go through --kubelet-extra-args of bootstrap.sh in the user data; gpuadm sets labels by the API once the node has joined",
				"call bootstrap.sh without --container-runtime: with nvidia-container-runtime it copies another file over containerd's, which gpuadm does not edit",
			},
			Taints: "its user data must call /etc/eks/bootstrap.sh with --kubelet-extra-args --register-with-taints=%s",
		},
		Engine: Engine{
			Writer:   "bootstrap.sh",
			How:      Rooted,
			Template: "/usr/local/share/eks/containerd-config.toml",
		},
		Snap: &Snap{Kubelet: "snap.kubelet-eks.daemon.service"},
	}
	// https://github.com/eksctl-io/eksctl
	eksctl = Tool{Name: "eksctl", Domains: []string{"alpha.eksctl.io/"}}
	// The images before nodeadm, with Amazon Linux 2.
	eksAL2 = Platform{
		Name:  "eks-al2",
		Title: "EKS with Amazon Linux 2",
		Cloud: "aws",
		Signs: Signs{Every: []string{"/etc/eks/bootstrap.sh"}},
	}
	// Sources: awslabs/amazon-eks-ami, issue 2545 (no images since November 2025);
	// eksctl-io/eksctl, pull 8714 (the system ended in June 2026).
	eksAL2Node = Sealed{
		Name:     "EKS with Amazon Linux 2",
		Platform: "eks-al2",
		Why:      "AWS no longer maintains these images or the system, and no newer driver supports it",
		Use:      "an AL2023 image",
	}
	// If the label is not on kubelet's command line, the node is one of Bottlerocket's. Sources:
	// https://docs.aws.amazon.com/eks/latest/userguide/automode.html (label, no access, read-only
	// root, GPU drivers and plugin); aws/agent-toolkit-for-aws, eks-auto-mode.md;
	// kubernetes-sigs/aws-ebs-csi-driver, charts (the label).
	eksAuto = Sealed{
		Name:  "EKS Auto Mode",
		Label: "eks.amazonaws.com/compute-type",
		Value: "auto",
		Why:   "AWS brings the driver and the device plugin, the root is read-only, and AWS allows no changes",
		Use:   "EKS Auto Mode's own GPU support, or a managed node group or a NodePool of your own Karpenter with an AL2023 image",
	}
)
