// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/jsonedit"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// Configured is what an engine's configuration says of handlers, as the engine reads it.
type Configured struct {
	Unreadable error             // why the engine cannot serve pods with it; nil: it can, or gpuadm cannot tell
	Default    string            // the handler of pods that name none
	Programs   map[string]string // by handler: the program that it runs, as the configuration states it
	Cgroups    map[string]string // by handler: systemd or cgroupfs, where containerd has the choice
}

// ForPods is the engine that pods run on.
func ForPods(f facts.Facts) (facts.Engine, error) { return engine(spec.Runtime{Engine: "auto"}, f) }

// NeedsHandler says whether containers get the GPUs by a handler on this machine: GKE's device plugin needs none.
func NeedsHandler(f facts.Facts) bool {
	h, err := HandlerOwner(spec.Spec{}, f)
	return err == nil && h.Name != ""
}

// ReadConfigured reads an engine's configuration.
func ReadConfigured(e facts.Engine) Configured {
	c := Configured{Programs: map[string]string{}, Cgroups: map[string]string{}}
	switch e.Name {
	case "containerd":
		c.containerd(e)
	case "crio":
		state, err := readCRIO(e.Files, e.Version)
		if c.Unreadable = err; err == nil {
			c.Default = state.byDefault
			for name, entry := range state.runtimes {
				c.Programs[name] = text(entry, "runtime_path")
			}
		}
	case "docker":
		if len(e.Files) > 0 && len(e.Files[0].Data) > 0 {
			_, c.Unreadable = jsonedit.Parse(e.Files[0].Data)
		}
	}
	return c
}

func (c *Configured) containerd(e facts.Engine) {
	t, err := asRead(e)
	if errors.Is(err, RefusedSyntax) || errors.Is(err, RefusedDisabled) {
		c.Unreadable = err
	}
	if err != nil {
		return
	}
	c.Default = t.defaultName()
	for name, entry := range sub(t.cri, "containerd", "runtimes") {
		table, _ := entry.(map[string]any)
		c.Programs[name] = programOf(table)
		if text(table, "runtime_type") != "io.containerd.runc.v2" {
			continue
		}
		_, systemd := toml.Field(sub(table, "options"), "SystemdCgroup")
		c.Cgroups[name] = map[bool]string{true: "systemd", false: "cgroupfs"}[systemd == true]
	}
}
