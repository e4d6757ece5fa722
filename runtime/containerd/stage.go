// SPDX-License-Identifier: Apache-2.0

package containerd

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
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Wants is what the runtime stage wants of containerd, by the owner of its configuration
// (owners.go).
func Wants(s spec.Spec, f facts.Facts, e facts.Engine) ([]converge.Want, error) {
	return ownerOf(s, e).wants(s, f, e, HandlerFor(s, f, e))
}

// edits chooses the file for the handler, one of the tree or a drop-in, and wants the handler in
// that file and in the running daemon.
func edits(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	if !s.Has("toolkit") && !slices.Contains(h.Programs, h.Binary) {
		h.Programs = append(h.Programs, facts.RuntimeOfOperator) // an entry for the operator's program may stay: neither program is installed
	}
	return editWants(s, f, e, h, "", Reads(e))
}

// editWants wants the handler in the file target, that of Target where it is "", and a daemon that
// has started after the last change of the files that it reads.
func editWants(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler, target string, reads []string) ([]converge.Want, error) {
	c, err := asRead(e)
	if err != nil {
		return nil, err
	}
	tree, daemon := treeOf(e), Daemon{Version: e.Version}
	h, wants := asDefault(s, f, c, h)
	if target == "" {
		if target, err = Target(tree, daemon, h); err != nil {
			return nil, err
		}
	}
	edit := func(found []byte) ([]byte, error) { return Edit(tree, daemon, h, target, found) }
	validate := func(ctx context.Context, v host.View, before, after []byte) error {
		return Validate(ctx, v, e.Binary, tree, h, target, before, after)
	}
	wants = append(wants, things.Folders(path.Dir(target), "holds the engine's configuration")...)
	wants = append(wants, things.Edited(things.NewFile(target, engine.TakeOutOf(tree.Texts)).Formed(engine.FormTOML).Validated(validate), edit, h.Why()))
	return append(wants, things.Prechecked(restarted(f, e, h, reads, target, edit), Loads(e))), nil
}

// restarted wants the daemon to run with its present files, and to serve the handler while target
// has its desired state.
func restarted(f facts.Facts, e facts.Engine, h engine.Handler, reads []string, target string, edit func([]byte) ([]byte, error)) converge.Want {
	ready := func(ctx context.Context, v host.View, _ string, _ []string) error {
		found, err := v.ReadFile(target)
		if err != nil {
			found = nil
		}
		if out, err := edit(found); err != nil || found == nil || !bytes.Equal(out, found) {
			return Answers(ctx, v, e, engine.Handler{}) // undo has restored the file, which need not have the handler
		}
		return Answers(ctx, v, e, h)
	}
	return engine.Restart(f, e, reads, ready, "containerd reads its configuration when it starts")
}

// Reads lists what the daemon reads when it starts: the root file, and each file that the tree
// imports; for a pattern, its folder.
func Reads(e facts.Engine) []string {
	t := treeOf(e)
	names := []string{t.Root.Path}
	for _, f := range append([]File{t.Root}, t.Imports...) {
		tree, err := t.Texts.Values(f.Data)
		if err != nil {
			continue // a file that cannot be read imports nothing
		}
		for _, p := range (configFile{path: f.Path, globs: t.Globs, tree: tree}).imports() {
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

// Notes names the settings that the daemon does not read, and says that the configuration disables
// CDI and that gpuadm leaves it so: only cdi = true in the spec overrides it.
func Notes(s spec.Spec, f facts.Facts, e facts.Engine) []string {
	c, err := asRead(e)
	if err != nil {
		return nil
	}
	list := c.unread()
	if h := HandlerFor(s, f, e); !h.CDI || h.Overrides || c.reader.cdi == cdiFixed {
		return list
	}
	if _, v := toml.Field(c.cri, "enable_cdi"); v == false {
		list = append(list, fmt.Sprintf("%s says enable_cdi = false, which stays: device plugins and DRA drivers that use CDI do not work here; cdi = true in [runtime] overrides it", e.Config))
	}
	return list
}

// Configured reads containerd's configuration.
func Configured(e facts.Engine) engine.Configured {
	c := engine.Configured{Programs: map[string]string{}, Cgroups: map[string]string{}}
	t, err := asRead(e)
	if errors.Is(err, RefusedSyntax) || errors.Is(err, RefusedDisabled) || errors.Is(err, RefusedStart) {
		c.Unreadable = err
	}
	if err != nil {
		return c
	}
	c.Default, c.Unread = t.defaultName(), t.unread()
	for name, entry := range toml.Sub(t.cri, "containerd", "runtimes") {
		table, _ := entry.(map[string]any)
		c.Programs[name] = programOf(table)
		if toml.String(table, "runtime_type") != runcV2 {
			continue
		}
		_, systemd := toml.Field(toml.Sub(table, "options"), "SystemdCgroup")
		c.Cgroups[name] = map[bool]string{true: "systemd", false: "cgroupfs"}[systemd == true]
	}
	return c
}

func treeOf(e facts.Engine) Tree {
	t := Tree{Root: File{Path: e.Config}, Globs: facts.Globs(e.Version), Expands: e.Expands, Texts: e.Texts}
	for _, f := range e.Files {
		if f.Path == e.Config {
			t.Root.Data = f.Data
			continue
		}
		t.Imports = append(t.Imports, File{Path: f.Path, Data: f.Data})
	}
	return t
}

func (t Tree) data(name string) []byte {
	for _, f := range append([]File{t.Root}, t.Imports...) {
		if f.Path == name {
			return f.Data
		}
	}
	return nil
}

// WithoutCDI says why containerd does not give containers CDI devices; "" if it does.
// Sources: pkg/cri/config/config_unix.go (v1.7.0) and internal/cri/config/config_unix.go (v2.0.0)
// of https://github.com/containerd/containerd.
func WithoutCDI(e facts.Engine) string {
	if major, minor, known := engine.ParseVersion(e.Version); known && (major < 1 || major == 1 && minor < 7) {
		return fmt.Sprintf("containerd %s has no CDI: 1.7 is the first", e.Version)
	}
	c, err := asRead(e)
	if err != nil {
		return "its configuration cannot be read: " + err.Error()
	}
	if len(c.cdiOps(c.files[0], engine.Handler{Overrides: true})) > 0 {
		return fmt.Sprintf("CDI is off in %s: write enable_cdi = true into its CRI plugin, and restart containerd", e.Config)
	}
	return ""
}
