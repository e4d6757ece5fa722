// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package engine has what gpuadm does alike for all container engines: the handler that is wanted and the program that it runs, the
// restart of a daemon and the wait until it serves again, and how gpuadm's edits of their TOML files are taken out.
package engine

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Binary is where the NVIDIA Container Toolkit's packages put the runtime that a handler runs.
const Binary = facts.RuntimeOfPackages

// Handler is the desired state of a CRI runtime handler.
type Handler struct {
	Name    string // "nvidia"
	Binary  string // "/usr/bin/nvidia-container-runtime"
	Default bool   // make it default_runtime_name; false leaves the default alone
	CDI     bool   // enable_cdi = true where that version has the key and it is not on already

	Overrides bool // CDI counts more than an enable_cdi = false that is there

	// Programs are the NVIDIA runtimes that are there. An entry that runs one of them is right: it is another program's, such as the
	// GPU Operator's.
	Programs []string

	// Systemd says that kubelet has systemd manage cgroups. A new entry follows it where no other entry says how.
	Systemd bool

	// Owned says that the file's owner has the handler: where that works, nothing is added to it.
	Owned bool
}

// Runs says whether an entry that runs program is right.
func (h Handler) Runs(program string) bool {
	return program == h.Binary || slices.Contains(h.Programs, program)
}

// Why says what the handler is for, as the reason of an edit.
func (h Handler) Why() string {
	why := fmt.Sprintf("handler %s runs %s", h.Name, path.Base(h.Binary))
	if h.Default {
		why += ", and is the default"
	}
	return why
}

// PlainHandler is the handler that the spec asks for, of an engine whose entries have one usual name.
func PlainHandler(r spec.Runtime) Handler {
	h := Handler{Name: r.Handler, Binary: Binary, Default: r.SetAsDefault, CDI: r.CDI}
	if h.Name == "auto" {
		h.Name = "nvidia"
	}
	return h
}

// OthersWrite says whether others write the engine's configuration, so that gpuadm verifies it and does not edit.
func OthersWrite(r spec.Runtime, e facts.Engine) bool {
	return e.Owner != "" && r.Owner != "gpuadm" || r.Owner == "other"
}

// Verify wants a configuration that another owner writes again to have the handler. lacks says what it lacks, "" if nothing.
func Verify(e facts.Engine, h Handler, lacks string) converge.Want {
	owner, because := e.Owner, ""
	if owner == "" {
		owner = "another program" // the spec says so
	}
	if e.Why != "" {
		because = " (" + e.Why + ")"
	}
	look := func(context.Context, host.View) (string, error) {
		if lacks == "" {
			return "", nil
		}
		return fmt.Sprintf("cannot use the handler %s: %s, and %s writes that file", h.Name, lacks, owner), nil
	}
	why := fmt.Sprintf("%s writes %s%s, so gpuadm verifies and does not edit", owner, e.Config, because)
	w := things.Check(fmt.Sprintf("handler %s in %s", h.Name, e.Config), look, why,
		fmt.Sprintf("let %s write it, or set owner = \"gpuadm\" in [runtime] if it no longer does", owner))
	w.Releases = true
	return w
}

// ParseVersion reads major and minor off "1.7.24", "v2.1.5", "2.1.5~ds1".
func ParseVersion(s string) (major, minor int, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(strings.TrimSpace(s), "v"), ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	digits := strings.IndexFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' })
	if digits >= 0 {
		parts[1] = parts[1][:digits]
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(parts[1])
	return major, minor, err == nil
}

// Configured is what an engine's configuration says of handlers, as the engine reads it.
type Configured struct {
	Unreadable error             // why the engine cannot serve pods with it; nil: it can, or gpuadm cannot tell
	Default    string            // the handler of pods that name none
	Programs   map[string]string // by handler: the program that it runs, as the configuration states it
	Cgroups    map[string]string // by handler: systemd or cgroupfs, where containerd has the choice
}
