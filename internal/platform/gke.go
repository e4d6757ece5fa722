// SPDX-License-Identifier: Apache-2.0

package platform

// Not yet moved here: cloud/gke, migOwner's label, Container-Optimized OS.
//
// Source: https://github.com/kubernetes/kubernetes/tree/v1.34.4/cluster/gce/gci: GKE's own scripts
// come from its configure-helper.sh.
var gke = Platform{
	Name:  "gke",
	Title: "GKE",
	Cloud: "gce",
	Signs: Signs{
		Every: []string{"/home/kubernetes"},
		One: []string{
			"kube-node-installation.service",
			"kube-node-configuration.service",
			"/home/kubernetes/kube-env",
		},
	},
	Join:   Join{Method: "gke", By: "GKE"},
	Engine: Engine{Writer: "gke", How: NoNeed},
	// https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms and .../node-taints:
	// gke-spot, gke-provisioning, gke-accelerator.
	Labels: []string{
		"cloud.google.com/", "cloud.google.com.node-restriction.kubernetes.io/",
		"iam.gke.io/", "node.gke.io/",
	},
}
