// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package runtime makes container engines run GPU containers: it edits their configuration, as bytes and by the
// smallest change that has exactly the wanted effect, has the engine itself judge the result, and waits until it serves
// again. Never import the standard package of the same name beside it.
package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Stage points the container engine at the NVIDIA runtime.
var Stage = converge.Stage{
	Name:  "runtime",
	About: "points the container engine at the NVIDIA runtime",
	Wants: wants,
	Needs: func(spec.Spec) facts.Needs { return facts.Needs{Files: []string{facts.AKSProvisioned}} },
	Notes: notes,
}

// Binary is where the NVIDIA Container Toolkit's packages put the runtime that a handler runs.
const Binary = facts.RuntimeOfPackages

func wants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if !s.Has("runtime") {
		return nil, nil
	}
	e, err := engine(s.Runtime, f)
	if err != nil {
		return nil, err
	}
	if s.Runtime.Inject == "cdi" {
		return []converge.Want{injected(e)}, nil
	}
	switch e.Name {
	case "crio":
		return crioWants(s, f, e)
	case "docker":
		return dockerWants(s, f, e)
	case "containerd":
		return ownerOf(s, e).wants(s, f, e, handlerOf(s, f, e))
	}
	return nil, &trouble.Error{
		What: fmt.Sprintf("cannot configure %s: this gpuadm edits the configuration of containerd, CRI-O and Docker only", e.Name),
		Try:  []string{fmt.Sprintf("nvidia-ctk runtime configure --runtime=%s, and drop [runtime] from node.toml", e.Name)},
	}
}

// edits wants the handler in one file, in place or as a drop-in, and the daemon to run with it.
func edits(s spec.Spec, f facts.Facts, e facts.Engine, h Handler) ([]converge.Want, error) {
	if !s.Has("toolkit") && !slices.Contains(h.Programs, h.Binary) {
		h.Programs = append(h.Programs, facts.RuntimeOfOperator) // nothing is gained by a change from one that is missing to another
	}
	c, err := asRead(e)
	if err != nil {
		return nil, err
	}
	h, works := asDefault(s, f, c, h)
	target, err := c.targetPath(h)
	if err != nil {
		return nil, err
	}
	return append(works, editWants(f, e, h, target, reads(tree(e)))...), nil
}

// editWants wants the handler in the file target, and a daemon that has started after what it reads was changed.
func editWants(f facts.Facts, e facts.Engine, h Handler, target string, reads []string) []converge.Want {
	tree, daemon := tree(e), Daemon{Version: e.Version}
	edit := func(found []byte) ([]byte, error) { return Edit(tree, daemon, h, target, found) }
	wants := things.Folders(path.Dir(target), "holds the engine's configuration")
	judge := func(ctx context.Context, v host.View, before, after []byte) error {
		return Prove(ctx, v, e.Binary, tree, h, target, before, after)
	}
	wants = append(wants, things.Edited(things.NewFile(target, takeOut(tree.Texts)).Formed(FormTOML).Proven(judge), edit, handlerWhy(h)))
	return append(wants, restarted(f, e, h, reads, target, edit))
}

// restarted wants the daemon to run with its present files, and to serve the handler while target has its desired state.
func restarted(f facts.Facts, e facts.Engine, h Handler, reads []string, target string, edit func([]byte) ([]byte, error)) converge.Want {
	ready := func(ctx context.Context, v host.View, _ string, _ []string) error {
		found, err := v.ReadFile(target)
		if err != nil {
			found = nil
		}
		if out, err := edit(found); err != nil || found == nil || !bytes.Equal(out, found) {
			return answers(ctx, v, socket(e), "") // the old bytes are back: they need not have the handler
		}
		return answers(ctx, v, socket(e), h.Name)
	}
	return restart(f, e, reads, ready, "containerd reads its configuration when it starts")
}

// restart wants an engine to have started after its files were changed. It says where kubelet restarts with it.
func restart(f facts.Facts, e facts.Engine, files []string, ready things.ReadyFunc, why string) converge.Want {
	unit := unitOf(e)
	w := things.Restart(unit, files, ready, why)
	if unit == f.Kubelet.Unit || slices.Contains(f.Kubelet.Requires, unit) {
		w.Breaks = append(w.Breaks, "restart-kubelet")
	}
	return w
}

// engine returns the container engine that kubelet talks to, or the one asked for.
func engine(r spec.Runtime, f facts.Facts) (facts.Engine, error) {
	var found []string
	pick := -1
	for i, e := range f.Engines {
		found = append(found, e.Name)
		switch {
		case r.Engine != "auto" && e.Name != r.Engine, r.Engine == "auto" && f.Kubelet.Endpoint == "" && dockers(e, f.Engines):
		case pick < 0, f.Kubelet.Uses(e):
			pick = i
		}
	}
	if pick < 0 {
		t := &trouble.Error{What: "cannot configure a container engine: none is installed", Try: []string{"install containerd first"}}
		if r.Engine != "auto" {
			t.What = fmt.Sprintf("cannot configure %s: it is not installed", r.Engine)
		}
		if len(found) > 0 {
			t.Because = []string{"installed: " + strings.Join(found, ", ")}
		}
		return facts.Engine{}, t
	}
	e := f.Engines[pick]
	if k := f.Kubelet; r.Engine == "auto" && k.Endpoint != "" && !k.Uses(e) {
		return e, notKubelets(k.Endpoint, f.Engines)
	}
	if e.Wrapper != "" && r.Config != e.Config {
		return e, &trouble.Error{
			What: fmt.Sprintf("cannot tell which configuration %s reads: %s starts it by %s", e.Name, e.Unit, e.Wrapper),
			Try: []string{
				fmt.Sprintf("have ExecStart= in %s start %s itself, with its options", e.Unit, e.Name),
				fmt.Sprintf("or, if it reads %s, write config = %q into [runtime]", e.Config, e.Config),
			},
		}
	}
	if r.Config != "" && r.Config != e.Config {
		return e, &trouble.Error{
			What: fmt.Sprintf("cannot edit %s: %s reads %s", r.Config, e.Name, e.Config),
			Try:  []string{"drop config from [runtime], or make the engine's unit read that file"},
		}
	}
	return e, nil
}

// dockers says whether a containerd is Docker's alone: Docker is there, and the CRI plugin is switched off, as Docker's package of
// containerd has it. Kubernetes cannot use it, and containers that Docker starts do not depend on its configuration.
func dockers(e facts.Engine, all []facts.Engine) bool {
	if e.Name != "containerd" || !slices.ContainsFunc(all, func(o facts.Engine) bool { return o.Name == "docker" && o.Binary != "" }) {
		return false
	}
	_, err := asRead(e)
	return errors.Is(err, RefusedDisabled)
}

// notKubelets says that kubelet talks to an engine that was not found: editing another one would do nothing for its pods.
func notKubelets(endpoint string, engines []facts.Engine) error {
	var at []string
	for _, e := range engines {
		at = append(at, fmt.Sprintf("%s at %s", e.Name, socket(e)))
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot configure a container engine: kubelet talks to %s, and none that was found listens there", endpoint),
		Try: []string{
			"point kubelet's containerRuntimeEndpoint at one that was: " + strings.Join(at, ", "),
			fmt.Sprintf("or, if its pods do not matter here, say engine = %q in [runtime]", engines[0].Name),
		},
	}
}

func socket(e facts.Engine) string {
	if e.Socket == "" {
		return defaultSocket
	}
	return e.Socket
}

func tree(e facts.Engine) Tree {
	t := Tree{Root: File{Path: e.Config}, Globs: facts.Globs(e.Version), Texts: e.Texts}
	for _, f := range e.Files {
		if f.Path == e.Config {
			t.Root.Data = f.Data
			continue
		}
		t.Imports = append(t.Imports, File{Path: f.Path, Data: f.Data})
	}
	return t
}

func data(t Tree, name string) []byte {
	for _, f := range append([]File{t.Root}, t.Imports...) {
		if f.Path == name {
			return f.Data
		}
	}
	return nil
}

// reads lists what the daemon reads at its start: its file, and the folders and files that it and what it imports import.
func reads(t Tree) []string {
	names := []string{t.Root.Path}
	for _, f := range append([]File{t.Root}, t.Imports...) {
		tree, err := t.Texts.Values(f.Data)
		if err != nil {
			continue // what cannot be read imports nothing
		}
		patterns, _ := configFile{path: f.Path, globs: t.Globs, tree: tree}.imports()
		for _, p := range patterns {
			if strings.ContainsAny(p, "*?[") {
				p = path.Dir(p)
			}
			if !slices.Contains(names, p) {
				names = append(names, p)
			}
		}
	}
	return names
}
