// SPDX-License-Identifier: Apache-2.0

package engine

// NRI is what an engine's files say of the Node Resource Interface, through which a plugin such as
// the GPU Operator's changes containers.
type NRI struct {
	Socket string // at which the engine listens for plugins
	Off    string // why it is off, and what turns it on; "" where it is on
}
