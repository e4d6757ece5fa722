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
	if err := engine.CheckOwner(s.Runtime, e); err != nil {
		return nil, err
	}
	return strategyOf(s, e).wants(s, f, e, HandlerFor(s, f, e))
}

// wantsEdit chooses the file for the handler, one of the tree or a drop-in, and wants the handler
// in that file and in the running daemon.
func wantsEdit(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	if !s.Has("toolkit") && !slices.Contains(h.Programs, h.Binary) {
		// Neither program is installed: an entry for the operator's may stay.
		h.Programs = append(h.Programs, facts.RuntimeOfOperator)
	}
	return editWants(s, f, e, h, "", Reads(e))
}

// editWants wants the handler in the file target, that of Target where it is "", and a daemon that
// has started after the last change of the files that it reads.
func editWants(
	s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler, target string, reads []string,
) ([]converge.Want, error) {
	c, err := readEngine(e)
	if err != nil {
		return nil, err
	}
	h, wants := asDefault(s, f, c, h)

	tree := treeOf(e)
	daemon := Daemon{Version: e.Version}
	if target == "" {
		target, err = Target(tree, daemon, h)
		if err != nil {
			return nil, err
		}
	}

	edit := func(found []byte) ([]byte, error) { return Edit(tree, daemon, h, target, found) }
	validate := func(ctx context.Context, v host.View, before, after []byte) error {
		return Validate(ctx, v, e, tree, h, target, before, after)
	}
	file := things.NewFile(target, engine.TakeOutOf(tree.Texts)).Formed(engine.FormTOML).Validated(validate)
	restart := things.Prechecked(restarted(f, e, h, reads, target, edit), Loads(e))

	wants = append(wants, things.Folders(path.Dir(target), "holds the engine's configuration")...)
	edited := things.Edited(file, edit, h.Why())
	for _, f := range c.files {
		switch {
		case !c.staysAlike(f, h, target):
		case f.path == target:
			edited = asFound(file, h.Why())
		default:
			other := things.NewFile(f.path, engine.TakeOutOf(tree.Texts)).Formed(engine.FormTOML)
			wants = append(wants, asFound(other, "it has the same entry as "+target))
		}
	}

	return append(wants, edited, restart), nil
}

// restarted wants the daemon to run with its present files, and to serve the handler while target
// has its desired state.
func restarted(
	f facts.Facts, e facts.Engine, h engine.Handler,
	reads []string, target string, edit func([]byte) ([]byte, error),
) converge.Want {
	ready := func(ctx context.Context, v host.View, _ string, _ []string) error {
		edited, err := isEdited(v, target, edit)
		switch {
		case err != nil:
			return err
		case !edited:
			// Undo has restored the file, which need not have the handler.
			return Answers(ctx, v, e, engine.Handler{})
		}
		return Answers(ctx, v, e, h)
	}

	want := engine.Restart(f, e, reads, ready, "containerd reads its configuration when it starts")
	return things.Judged(want, engine.Fresh(e.Config, engine.UnitOf(e), Verdict))
}

// isEdited says whether a file exists and has its desired state. Its error says that the file
// cannot be read.
func isEdited(v host.View, name string, edit func([]byte) ([]byte, error)) (bool, error) {
	found, err := v.ReadFile(name)
	switch {
	case host.NotExist(err), err == nil && found == nil:
		return false, nil
	case err != nil:
		return false, err
	}
	edited, err := edit(found)
	return err == nil && bytes.Equal(edited, found), nil
}

// Reads lists what the daemon reads when it starts: the root file, and each file that the tree
// imports; for a pattern, its folder.
func Reads(e facts.Engine) []string {
	t := treeOf(e)
	names := []string{t.Root.Path}
	for _, f := range t.files() {
		values, err := t.Texts.Values(f.Data)
		if err != nil {
			continue // a file that cannot be read imports nothing
		}

		file := configFile{path: f.Path, globs: t.Globs, tree: values}
		for _, name := range file.imports() {
			if strings.ContainsAny(name, "*?[") {
				name = path.Dir(name)
			}
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}

	return names
}

// Notes names the settings that the daemon does not read, and says that the configuration disables
// CDI and that gpuadm leaves it so: only cdi = true in the spec overrides it.
func Notes(s spec.Spec, f facts.Facts, e facts.Engine) []string {
	c, err := readEngine(e)
	if err != nil {
		return nil
	}
	list := c.unread()
	h := HandlerFor(s, f, e)
	if !h.CDI || h.Overrides || c.reader.cdi == cdiFixed {
		return list
	}

	if _, value := toml.Field(c.cri, "enable_cdi"); value == false {
		list = append(list, fmt.Sprintf("%s says enable_cdi = false, which stays: device plugins and DRA drivers that use CDI do not work here; cdi = true in [runtime] overrides it", c.cdiFile()))
	}
	return list
}

// Configured reads containerd's configuration.
func Configured(e facts.Engine) engine.Configured {
	configured := engine.Configured{
		Programs: map[string]string{},
		Cgroups:  map[string]string{},
	}
	c, err := readEngine(e)
	if err != nil {
		if keepsFromServing(err) {
			configured.Unreadable = err
		}
		return configured
	}

	configured.Default = c.defaultName()
	configured.Unread = c.unread()
	for name := range c.runtimes() {
		entry := c.entry(name)
		configured.Programs[name] = programOf(entry)
		switch toml.String(entry, "runtime_type") {
		case runcV2:
			configured.Cgroups[name] = cgroupsOf(entry)
		case "":
			configured.Untyped = append(configured.Untyped, name)
		}
	}

	slices.Sort(configured.Untyped)
	return configured
}

// keepsFromServing says whether the daemon cannot serve pods for the reason that gpuadm refuses its
// configuration for.
func keepsFromServing(err error) bool {
	return errors.Is(err, RefusedSyntax) || errors.Is(err, RefusedDisabled) || errors.Is(err, RefusedStart)
}

// cgroupsOf says what manages the cgroups of an entry's containers: systemd or cgroupfs.
func cgroupsOf(entry map[string]any) string {
	if _, systemd := toml.Field(toml.Sub(entry, "options"), "SystemdCgroup"); systemd == true {
		return "systemd"
	}
	return "cgroupfs"
}

// WithoutCDI says why containerd does not give containers CDI devices; "" if it does.
// Sources: pkg/cri/config/config_unix.go (v1.7.0) and internal/cri/config/config_unix.go (v2.0.0)
// of https://github.com/containerd/containerd.
func WithoutCDI(e facts.Engine) string {
	if engine.IsBefore(e.Version, 1, 7) {
		return fmt.Sprintf("containerd %s has no CDI: 1.7 is the first", e.Version)
	}

	c, err := readEngine(e)
	if err != nil {
		return "its configuration cannot be read: " + err.Error()
	}
	if len(c.cdiOps(c.files[0], engine.Handler{Overrides: true})) > 0 {
		return fmt.Sprintf("CDI is off in %s: write enable_cdi = true into its CRI plugin, and restart containerd", c.cdiFile())
	}
	return ""
}

// CDIFolders are the folders in which the CRI plugin looks for CDI specs, as the configuration
// states them; nil where it states none.
func CDIFolders(e facts.Engine) []string {
	c, err := readEngine(e)
	if err != nil {
		return nil
	}
	return toml.Strings(c.cri, "cdi_spec_dirs")
}
