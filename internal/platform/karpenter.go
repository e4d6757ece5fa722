// SPDX-License-Identifier: Apache-2.0

package platform

import "strings"

// Karpenter makes nodes on several clouds, and marks each of them: with a taint until it has
// registered, and with a label that names its NodePool, which is also a tag of the instance.
// Source: https://karpenter.sh/docs/concepts/scheduling/, "well-known labels";
// karpenter.sh/capacity-type marks spot nodes.
const (
	karpenterDomain = "karpenter.sh/"

	UnregisteredTaint = karpenterDomain + "unregistered"
	NodePoolLabel     = karpenterDomain + "nodepool"
)

// The domains of its labels on single clouds are in the repositories of its providers.
var karpenter = Tool{
	Name: "Karpenter",
	Domains: []string{
		karpenterDomain,
		"karpenter.k8s.aws/", "karpenter.azure.com/", "karpenter.k8s.gcp/",
	},
}

// IsNodePoolTag reports whether a tag of an instance is one by which a NodePool marks its machines.
func IsNodePoolTag(key string) bool { return strings.HasPrefix(key, karpenterDomain) }
