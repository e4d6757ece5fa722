// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package engine

// Configured is what an engine's configuration says of handlers, as the engine reads it.
type Configured struct {
	Unreadable error             // why the engine cannot serve pods with it; nil: it can, or gpuadm cannot tell
	Default    string            // the handler of pods that name none
	Programs   map[string]string // by handler: the program that it runs, as the configuration states it
	Cgroups    map[string]string // by handler: systemd or cgroupfs, where containerd has the choice
}
