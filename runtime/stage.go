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
)

// Stage points the container engine at the NVIDIA runtime.
var Stage = converge.Stage{
	Name:  "runtime",
	About: "points the container engine at the NVIDIA runtime",
	Wants: wants,
	Notes: lacksToolkit,
}

// Binary is where the NVIDIA Container Toolkit's packages put the runtime that a handler runs.
const Binary = "/usr/bin/nvidia-container-runtime"

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
	if e.Name != "containerd" {
		return nil, &converge.Trouble{
			What: fmt.Sprintf("cannot configure %s: this gpuadm edits containerd's configuration only", e.Name),
			Try:  []string{fmt.Sprintf("nvidia-ctk runtime configure --runtime=%s, and drop [runtime] from node.toml", e.Name)},
		}
	}
	h := Handler{Name: s.Runtime.Handler, Binary: Binary, Default: s.Runtime.SetAsDefault, CDI: s.Runtime.CDI}
	if e.Owner != "" && s.Runtime.Owner != "gpuadm" || s.Runtime.Owner == "other" {
		if e.Owner == "nodeadm" && (s.Join.Method == "eks" || s.Join.Method == "auto") {
			return []converge.Want{nodeadms(e, h)}, nil
		}
		return []converge.Want{verify(e, h)}, nil
	}
	return containerdWants(e, f.Kubelet, h)
}

// containerdWants edits one file, in place or as a drop-in, and wants the daemon to run with it.
func containerdWants(e facts.Engine, k facts.Kubelet, h Handler) ([]converge.Want, error) {
	tree, daemon := tree(e), Daemon{Version: e.Version}
	target, err := Target(tree, daemon, h)
	if err != nil {
		return nil, trouble(err)
	}
	edit := func(found []byte) ([]byte, error) {
		out, err := Edit(tree, daemon, h, target, found)
		return out, trouble(err)
	}
	why := fmt.Sprintf("handler %s runs %s", h.Name, path.Base(h.Binary))
	if h.Default {
		why += ", and is the default"
	}
	wants := things.Folders(path.Dir(target), "holds the engine's configuration")
	judge := func(ctx context.Context, v host.View, before, after []byte) error {
		return Prove(ctx, v, e.Binary, tree, h, target, before, after)
	}
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
	wants = append(wants, things.Edited(things.NewFile(target, TakeOut).Proven(judge), edit, why))
	unit := e.Unit
	if unit == "" {
		unit = "containerd.service"
	}
	restart := things.Restart(unit, reads(tree), ready, "containerd reads its configuration when it starts")
	if slices.Contains(k.Requires, unit) {
		restart.Breaks = append(restart.Breaks, "restart-kubelet")
	}
	return append(wants, restart), nil
}

// engine returns the container engine that kubelet talks to, or the one asked for.
func engine(r spec.Runtime, f facts.Facts) (facts.Engine, error) {
	var found []string
	pick := -1
	for i, e := range f.Engines {
		found = append(found, e.Name)
		switch {
		case r.Engine != "auto" && e.Name != r.Engine:
		case pick < 0, f.Kubelet.Uses(e):
			pick = i
		}
	}
	if pick < 0 {
		t := &converge.Trouble{What: "cannot configure a container engine: none is installed", Try: []string{"install containerd first"}}
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
	if r.Config != "" && r.Config != e.Config {
		return e, &converge.Trouble{
			What: fmt.Sprintf("cannot edit %s: %s reads %s", r.Config, e.Name, e.Config),
			Try:  []string{"drop config from [runtime], or make the engine's unit read that file"},
		}
	}
	return e, nil
}

// notKubelets says that kubelet talks to an engine that was not found: editing another one would do nothing for its pods.
func notKubelets(endpoint string, engines []facts.Engine) error {
	var at []string
	for _, e := range engines {
		at = append(at, fmt.Sprintf("%s at %s", e.Name, socket(e)))
	}
	return &converge.Trouble{
		What: fmt.Sprintf("cannot configure a container engine: kubelet talks to %s, and none that was found listens there", endpoint),
		Try: []string{
			"point kubelet's containerRuntimeEndpoint at one that was: " + strings.Join(at, ", "),
			fmt.Sprintf("or, if its pods do not matter here, say engine = %q in [runtime]", engines[0].Name),
		},
	}
}

// verify looks whether a configuration that is somebody else's has the handler. We do not edit what its owner would
// write anew at the next boot.
func verify(e facts.Engine, h Handler) converge.Want {
	owner := e.Owner
	if owner == "" {
		owner = "somebody else"
	}
	look := func(context.Context, host.View) (string, error) {
		if lacks := lacking(e, h); lacks != "" {
			return fmt.Sprintf("cannot use the handler %s: %s %s, and %s writes that file", h.Name, e.Config, lacks, owner), nil
		}
		return "", nil
	}
	why := fmt.Sprintf("%s writes %s (%s), so gpuadm looks and does not edit", owner, e.Config, e.Why)
	w := things.Check(fmt.Sprintf("handler %s in %s", h.Name, e.Config), look, why,
		fmt.Sprintf("let %s write it, or set owner = \"gpuadm\" in [runtime] if it no longer does", owner))
	w.Releases = true
	return w
}

// lacking says what a configuration lacks of a handler, "" if nothing.
func lacking(e facts.Engine, h Handler) string {
	tree, daemon := tree(e), Daemon{Version: e.Version}
	target, err := Target(tree, daemon, h)
	if err != nil {
		return "cannot have it: " + err.Error()
	}
	found := data(tree, target)
	switch out, err := Edit(tree, daemon, h, target, found); {
	case err != nil:
		return "cannot have it: " + err.Error()
	case found == nil || string(out) != string(found):
		return "does not have it as wanted"
	}
	return ""
}

// nodeadms is verify where nodeadm writes the file: when it runs, which is after us in a boot, and waits for us. So a handler that
// is not there yet is nothing to wait for here. Stage join tells nodeadm, and stage ready has the engine itself say whether
// it has the handler, before pods come.
func nodeadms(e facts.Engine, h Handler) converge.Want {
	w := verify(e, h)
	if lacking(e, h) != "" {
		w.Thing = things.Check(e.Config+" is nodeadm's", func(context.Context, host.View) (string, error) { return "", nil }, "").Thing
		w.Why = "nodeadm writes it when it runs next, and the handler into it"
	}
	return w
}

func socket(e facts.Engine) string {
	if e.Socket == "" {
		return defaultSocket
	}
	return e.Socket
}

func tree(e facts.Engine) Tree {
	t := Tree{Root: File{Path: e.Config}}
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

// reads lists what the daemon reads at its start: its file, and the folders and files that it imports.
func reads(t Tree) []string {
	names := []string{t.Root.Path}
	patterns, _ := facts.Imports(t.Root.Path, t.Root.Data) // what cannot be read imports nothing
	for _, p := range patterns {
		if strings.ContainsAny(p, "*?[") {
			p = path.Dir(p)
		}
		names = append(names, p)
	}
	return names
}

// trouble gives a refusal the engine's form.
func trouble(err error) error {
	r := (*Refusal)(nil)
	if !errors.As(err, &r) {
		return err
	}
	return &converge.Trouble{What: r.Error(), Try: []string{r.Mend}, Err: r}
}
