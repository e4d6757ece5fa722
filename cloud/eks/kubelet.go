// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
)

// On EKS's own images nodeadm configures kubelet, and gpuadm's join must give the same node: the
// keys and their values are from https://github.com/awslabs/amazon-eks-ami,
// nodeadm/internal/kubelet/config.go. A test compares the two, and states the reason for each
// difference.

// config are EKS's keys of kubelet's configuration.
func (n *ownNode) config(f facts.Facts) map[string]any {
	pods := maxPods(n.cluster)
	c := map[string]any{
		"clusterDNS":    n.cluster.DNS,
		"clusterDomain": "cluster.local",
		"maxPods":       pods,
		// The cloud controller finds the machine by it:
		// https://kubernetes.io/docs/concepts/architecture/cloud-controller/
		"providerID":          "aws:///" + n.machine.Zone + "/" + n.machine.ID,
		"serverTLSBootstrap":  true, // EKS signs the certificate of its server
		"serializeImagePulls": false,
		"evictionHard": map[string]any{
			"memory.available":  "100Mi",
			"nodefs.available":  "10%",
			"nodefs.inodesFree": "5%",
		},
		"tlsCipherSuites": []string{
			"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
			"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
			"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
			"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
			"TLS_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_256_GCM_SHA384",
		},
	}
	if reserved := kubelet.Reserved(f, pods); reserved != nil {
		c["kubeReserved"] = reserved
	}
	return c
}

// maxPods returns the number of pods for which the VPC CNI has addresses: each interface keeps one
// for itself, and two pods use the host's network. 110 if the type is not known.
// Source: https://github.com/awslabs/amazon-eks-ami, templates/shared/runtime/eni-max-pods.txt.
func maxPods(c instance.Cluster) int {
	if c.ENIs < 1 || c.IPv4PerENI < 2 {
		return 110
	}
	return c.ENIs*(c.IPv4PerENI-1) + 2
}

// flags returns the settings that kubelet accepts only on its command line.
func (n *ownNode) flags(f facts.Facts) []string {
	flags := []string{"--cloud-provider=external", "--node-ip=" + n.ip}
	return append(flags, ecrFlags(f)...)
}
