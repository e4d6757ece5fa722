// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// Wants wants one drop-in, and CRI-O to run with it. All versions of CRI-O that gpuadm knows read
// CDI specs, so there is nothing to switch on: cdi_spec_dirs in docs/crio.conf.5.md of
// https://github.com/cri-o/cri-o at v1.23.0.
func Wants(s spec.Spec, f facts.Facts, e facts.Engine) ([]converge.Want, error) {
	h := engine.PlainHandler(s.Runtime)
	if err := engine.CheckOwner(s.Runtime, e); err != nil {
		return nil, err
	}
	if !engine.MayEdit(s.Runtime, f, e) {
		return []converge.Want{engine.Verify(e, h, missing(e, h))}, nil
	}
	c, err := readFiles(e.Files, e.Version)
	if err != nil {
		return nil, err
	}

	var wants []converge.Want
	target := path.Join(e.Folder, dropIn)
	program := h.Binary
	if entry, file := c.foreign(h.Name, target); entry != nil {
		program = toml.String(entry, "runtime_path")
		wrong := ""
		switch {
		case entry[inherits] == true:
			wrong = inherits + " has it run the default runtime's program"
		case h.Stated() && program != h.Binary:
			wrong = fmt.Sprintf("it runs %s, and the spec asks for %s", program, h.Binary)
		}

		wants = append(wants, engine.OwnersProgram(h.Name, file, program, wrong))
	}

	h, works := engine.DefaultRuns(s, f, h, program, missing(e, h) != "")
	wants = append(wants, works...)

	edit := func(found []byte) ([]byte, error) {
		return editFile(e.Files, e.Version, h, target, found)
	}
	edited, err := edit(nil)
	if err != nil {
		return nil, err
	}
	if edited != nil {
		wants = append(wants, things.Folders(e.Folder, "holds the engine's configuration")...)
	}
	validates := func(ctx context.Context, v host.View, before, after []byte) error {
		return validate(ctx, v, e, h, target, before, after)
	}
	file := things.NewFile(target, engine.TakeOut).Formed(engine.FormTOML).Validated(validates)
	edits := things.Edited(file, edit, h.Why())
	if c.isAlike(e.Files, h, target) {
		edits.To = func(found converge.State) (converge.State, error) { return found, nil }
		edits.AsFound = true
	}

	ready := func(ctx context.Context, v host.View, _ string, _ []string) error {
		return Ready(ctx, v, e)
	}
	reads := []string{e.Config, e.Folder}
	restart := engine.Restart(f, e, reads, ready, "CRI-O reads its configuration when it starts")
	restart = things.Judged(restart, engine.Fresh(e.Config, engine.UnitOf(e), Verdict))
	return append(wants, edits, things.Prechecked(restart, Loads(e))), nil
}

// Configured reads CRI-O's configuration.
func Configured(e facts.Engine) engine.Configured {
	c, err := readFiles(e.Files, e.Version)
	if err != nil {
		return engine.Configured{Unreadable: err}
	}

	configured := engine.Configured{Default: c.byDefault, Programs: map[string]string{}}
	for name, entry := range c.runtimes {
		configured.Programs[name] = toml.String(entry, "runtime_path")
	}
	program := path.Base(configured.Programs[c.byDefault])
	if c.forgets != "" && strings.HasPrefix(program, "nvidia") {
		configured.Unread = []string{fmt.Sprintf(
			"CRI-O %s forgets the runtime %s, as %s has another default",
			e.Version, c.builtin, c.forgets,
		)}
	}
	return configured
}

// loadedWith is what CRI-O must have loaded.
type loadedWith struct {
	handlers  []string
	byDefault string // "" for any
}

// askedFor is what gpuadm's drop-in asks for: nothing if it is missing, since an undo has removed
// it then.
func askedFor(v host.View, file string) (loadedWith, error) {
	data, err := v.ReadFile(file)
	switch {
	case host.NotExist(err):
		return loadedWith{}, nil
	case err != nil:
		return loadedWith{}, err
	}
	tree, _ := toml.Values(data) // CRI-O judges it
	settings := toml.Sub(tree, "crio", "runtime")
	return loadedWith{
		handlers:  slices.Sorted(maps.Keys(toml.Sub(settings, "runtimes"))),
		byDefault: toml.String(settings, "default_runtime"),
	}, nil
}

// waitFor waits until CRI-O answers CRI, and then asks what it has loaded.
func waitFor(ctx context.Context, v host.View, e facts.Engine, want loadedWith) error {
	var loaded []byte
	err := engine.UntilDone(ctx, func(ctx context.Context) error {
		_, _, err := engine.Status(ctx, v, e)
		if err == nil {
			loaded, err = host.AskSocket(ctx, v, e.Socket, "/config")
		}
		return err
	})
	if errors.As(err, &host.Later{}) {
		return nil // no daemon runs here
	}
	if err != nil {
		return fmt.Errorf("CRI-O does not answer at %s: %w", e.Socket, err)
	}
	return want.check(loaded, engine.UnitOf(e))
}

// check judges the TOML of what CRI-O has loaded. `crio status config` prints the same: it asks the
// same socket for the same path in all versions. CRI-O drops a handler whose program is missing,
// and reports that only in its log.
// Sources: ConfigInfo in internal/client/client.go and InspectConfigEndpoint in server/inspect.go
// of https://github.com/cri-o/cri-o at v1.23.0 and v1.36.3; ValidateRuntimes in
// pkg/config/config.go there.
func (l loadedWith) check(loaded []byte, unit string) error {
	tree, err := toml.Values(loaded)
	if err != nil {
		return fmt.Errorf("cannot read the configuration that CRI-O has loaded: %w", err)
	}

	settings := toml.Sub(tree, "crio", "runtime")
	runtimes := toml.Sub(settings, "runtimes")
	for _, name := range l.handlers {
		if runtimes[name] == nil {
			return fmt.Errorf("CRI-O runs without the handler %s, as it does if the handler's program is missing: journalctl -u %s says why", name, unit)
		}
	}

	current := toml.String(settings, "default_runtime")
	if l.byDefault != "" && l.byDefault != current {
		return fmt.Errorf("CRI-O has loaded its configuration with the default runtime %q, not %q", current, l.byDefault)
	}
	return nil
}

// Ready waits until CRI-O answers with what gpuadm's drop-in asks for.
func Ready(ctx context.Context, v host.View, e facts.Engine) error {
	want, err := askedFor(v, path.Join(e.Folder, dropIn))
	if err != nil {
		return err
	}
	return waitFor(ctx, v, e, want)
}

// Answers says whether CRI-O answers now, and has loaded the handler if it has a name.
func Answers(ctx context.Context, v host.View, e facts.Engine, h engine.Handler) error {
	var want loadedWith
	if h.Name != "" {
		want.handlers = []string{h.Name}
		if h.Default {
			want.byDefault = h.Name
		}
	}

	return waitFor(ctx, v, e, want)
}
