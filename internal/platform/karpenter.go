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

// UnnamedTaint says why a node that Karpenter makes starts without a taint that startupTaints of
// its NodePool do not name. Karpenter makes no second node while a node starts with a taint that
// they name; from 1.13 on it knows taints of readiness.k8s.io without configuration, and older
// versions know only other owners' keys.
// Source: kubernetes-sigs/karpenter at 22664681, pkg/scheduling/taints.go, KnownEphemeralTaints and
// KnownEphemeralTaintKeyPrefixes, which pull 3025 added; and
// https://karpenter.sh/docs/concepts/nodepools/, "spec.template.spec.startupTaints".
func UnnamedTaint(taint string) string {
	return "Karpenter before 1.13 would make a second node for a taint that its NodePool does not name; " +
		"name " + taint + " in startupTaints, or with 1.13 or newer write it in startup_taint"
}
