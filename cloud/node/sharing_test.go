// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestNamespaceManifest: a Namespace is made unless each cluster has it. The API server makes no
// other one of which the name begins with kube-.
func TestNamespaceManifest(t *testing.T) {
	for name, isMade := range map[string]bool{
		"nvidia-device-plugin": true,
		"kube-gpu":             true,
		"default":              false,
		"kube-node-lease":      false,
		"kube-public":          false,
		"kube-system":          false,
	} {
		made := NamespaceManifest(name) != nil
		check.That(t, made == isMade, "%s is made: %v", name, made)
	}
}
