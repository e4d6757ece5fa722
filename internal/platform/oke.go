// SPDX-License-Identifier: Apache-2.0

package platform

// okeNoPlugin keeps the plugin of OKE's add-on off a node.
const okeNoPlugin = "oci.oraclecloud.com/disable-gpu-device-plugin"

// oke is a machine of an OKE cluster, of a pool or self-managed. Sources:
// oracle-terraform-modules/terraform-oci-oke, modules/workers (what cloud-init writes and calls);
// oracle-quickstart/oci-hpc-oke, terraform/cloud-init/ubuntu.sh (oci-oke-node-all, oke bootstrap);
// for which tool installs what,
// https://docs.nvidia.com/aicr/v1.3.0/integrator-guide/oke-gpu-setup.md; for the label, run-ai/docs
// pull 1292.
var oke = Platform{
	Name:  "oke",
	Title: "OKE",
	Cloud: "oci",
	Signs: Signs{
		Every: []string{"/etc/oke"},
		One: []string{
			"/etc/oke/oke-install.sh", "/etc/oke/oke-apiserver", "/etc/oke/oke.conf",
			"oke-init.service", "oke.service",
		},
	},
	Join: Join{
		Method: "oke",
		Called: []string{"oci", "oracle"},
		By:     "OKE's scripts",
		Looked: []string{"looked for /etc/oke with OKE's scripts"},
		Try:    []string{"add a GPU node pool, or make a self-managed node: its cloud-init calls /etc/oke/oke-install.sh or oke bootstrap"},
		Notes: []string{
			"OKE's scripts join this machine (%s): kubelet's arguments go through --kubelet-extra-args of its cloud-init",
			"OKE's add-on NvidiaGpuPlugin offers the GPUs: remove it, or label the pool " + okeNoPlugin + "=true, before another plugin comes",
		},
		Taints: "its cloud-init must call OKE's script with --kubelet-extra-args --register-with-taints for %s",
	},
	// Sources: oracle-quickstart/oci-hpc-oke, terraform (node_labels of GPU pools), and the
	// guide above.
	Plugin: Plugin{
		Who:     "OKE's add-on NvidiaGpuPlugin",
		Program: "nvidia-device-plugin",
		Ends:    "label the pool " + okeNoPlugin + "=true",
		Off:     okeNoPlugin,
	},
	Labels: []string{"oci.oraclecloud.com/", "oke.oraclecloud.com/"},
}
