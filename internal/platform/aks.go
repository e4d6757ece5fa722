// SPDX-License-Identifier: Apache-2.0

package platform

// aks is a machine of a pool. Where a comment names no other source, it is
// https://github.com/Azure/AgentBaker at 06836ee2, parts/linux/cloud-init/artifacts.
var aks = Platform{
	Name:  "aks",
	Title: "AKS",
	Cloud: "azure",
	// azure.json alone is not a sign: Cluster API's machines on Azure have it, too.
	Signs: Signs{
		Every: []string{"/opt/azure/containers"},
		One: []string{
			"/opt/azure/containers/provision.sh", "/opt/azure/containers/provision_start.sh", aksDone,
			"/etc/kubernetes/azure.json",
			"aks-node-controller.service",
		},
	},
	Join: Join{
		Method: "aks",
		Called: []string{"azure"},
		By:     "AKS",
		Gate:   true,
		Done:   aksDone,
		Log:    "/var/log/azure/cluster-provision.log",
		Looked: []string{"looked for /opt/azure/containers with AKS's scripts, and for a unit aks-node-controller.service"},
		Try:    []string{"add a GPU node pool: az aks nodepool add --gpu-driver none"},
		Begin:  "AKS writes kubelet's and containerd's files",
		AtBoot: []string{
			"on AKS run gpuadm as a DaemonSet",
			"or drop [driver] from the node.toml of the image",
		},
		Notes: []string{
			"AKS joins the machines of its pools itself (%s): its scripts own /etc/containerd/config.toml, /etc/default/kubelet, kubelet.service.d and /etc/kubernetes, and gpuadm leaves those alone",
			"they install a driver too, unless the pool was made with --gpu-driver none or its machines carry the tag SkipGpuDriverInstall=true",
		},
		Taints: "the pool's nodeInitializationTaints must name %s, and not nodeTaints: AKS restores those each time they are removed",
	},
	// cse_config.sh: ensureContainerd. The name: pkg/agent/baker.go and
	// aks-node-controller/parser/templates/containerd.toml.gtpl; images for GB200 have "nvidia".
	Engine: Engine{
		Writer:  "aks",
		How:     After,
		Handler: "nvidia-container-runtime",
	},
	// AKS's Ubuntu images have a driver. AKS's provisioning uses it, or at its end removes it by
	// path; if the removal was incomplete, the marker stays. ubuntu/cse_install_ubuntu.sh:
	// cleanUpPrebakedGPUDriver; Azure/aks-gpu at dde3239, install.sh (GPU_DEST=/usr/bin).
	Driver: Driver{
		Title:      "AKS",
		Not:        "with --gpu-driver none",
		Files:      []string{"/opt/azure/aks-gpu/dkms-marker"},
		Unpackaged: true,
		Installer:  "/usr/bin/lib64",
		TakeOver:   "or take it over: make a node pool with az aks nodepool add --gpu-driver none. If this pool already is one, AKS has not removed all of its driver: reimage the node",
	},
	Toolkit: "AKS",
	MIG: MIG{
		Who:  "AKS",
		Unit: true,
		Ends: "make a pool without --gpu-instance-profile: AKS partitions the GPUs when it makes the pool",
	},
	// cse_config.sh: configureManagedGPUExperience.
	Plugin: Plugin{
		Who:   "AKS",
		Units: []string{"nvidia-device-plugin.service", "dra-driver-nvidia-gpu.service"},
		Ends:  "make one without --enable-managed-gpu",
	},
	// https://learn.microsoft.com/azure/aks/use-labels, "reserved system labels"; scalesetpriority
	// marks spot nodes.
	Labels: []string{"kubernetes.azure.com/", "node.kubernetes.azure.com/"},
	// AKS sets it on the machines of its pools alone; cluster-autoscaler reads it elsewhere too.
	Free: []string{"kubernetes.azure.com/accelerator"},
	// Nothing on a node shows that its cluster is AKS Automatic. MicrosoftDocs/azure-aks-docs at
	// fb060abe6, articles/aks/ deployment-safeguards.md; https://github.com/Azure/AKS/issues/5442,
	// and pull 5798 (2026-05-29).
	Limit: "the deployment safeguards of AKS Automatic refuse gpuadm's pod until you exclude its namespace: az aks safeguards update --level Enforce --excluded-ns gpuadm; gpuadm has not been tested there",
}

// aksDone is a file that exists once AKS's scripts have ended, in success or failure: cse_start.sh
// and cse_main.sh. They do nothing at later boots.
const aksDone = "/opt/azure/containers/provision.complete"

// aksFlex is a machine outside Azure, whose kubelet runs in a container:
// https://github.com/Azure/AKSFlexNode.
var aksFlex = Platform{
	Name:  "aks-flex",
	Title: "AKS Flex Node",
	Signs: Signs{Every: []string{"/etc/aks-flex-node"}},
	Join: Join{
		Method: "aks",
		Unseen: true,
		Notes: []string{
			"AKS Flex Node joins this machine (%s) and writes the files of its kubelet; the driver is ours",
		},
	},
}
