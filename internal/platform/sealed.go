// SPDX-License-Identifier: Apache-2.0

package platform

// Sealed is a kind of node that gpuadm cannot prepare, since its owner provides it as a whole. The
// clouds' pages in docs say the same. A node of the kind has all signs that are not empty.
type Sealed struct {
	Name string

	System   string // ID in os-release
	Platform string // by its name in facts
	Label    string // of kubelet
	Value    string // of that label
	Host     string // how the node's name begins
	HostWhy  string // what that shows

	Why string
	Use string // what to use instead
}
