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
func Wants(sp spec.Spec, f facts.Facts, e facts.Engine) ([]converge.Want, error) {
	h := engine.PlainHandler(sp.Runtime)
	if engine.OthersWrite(sp.Runtime, e) {
		return []converge.Want{engine.Verify(e, h, lacks(e, h))}, nil
	}
	target := path.Join(e.Folder, dropIn)
	state, err := readFiles(e.Files, e.Version)
	if err != nil {
		return nil, err
	}
	var wants []converge.Want
	program := h.Binary
	if entry, file := state.foreign(h.Name, target); entry != nil {
		program = toml.String(entry, "runtime_path")
		wrong := ""
		if entry[inherits] == true {
			wrong = inherits + " has it run the default runtime's program"
		}
		wants = append(wants, engine.OwnersProgram(h.Name, file, program, wrong))
	}
	h, works := engine.DefaultRuns(sp, f, h, program, lacks(e, h) != "")
	wants = append(wants, works...)
	edit := func(found []byte) ([]byte, error) { return editFile(e.Files, e.Version, h, target, found) }
	if out, err := edit(nil); err != nil {
		return nil, err
	} else if out != nil {
		wants = append(wants, things.Folders(e.Folder, "holds the engine's configuration")...)
	}
	judge := func(ctx context.Context, v host.View, before, after []byte) error {
		return validate(ctx, v, e, h, target, before, after)
	}
	wants = append(wants, things.Edited(things.NewFile(target, engine.TakeOut).Formed(engine.FormTOML).Validated(judge), edit, h.Why()))
	ready := func(ctx context.Context, v host.View, _ string, _ []string) error {
		return Ready(ctx, v, e)
	}
	restart := engine.Restart(f, e, []string{e.Config, e.Folder}, ready, "CRI-O reads its configuration when it starts")
	return append(wants, things.Prechecked(restart, Loads(e))), nil
}

// validate has CRI-O itself validate its files with the edited one among them: `crio config` reads
// them, validates them, and prints the result. It runs nothing. Sources: internal/criocli/config.go
// of https://github.com/cri-o/cri-o at v1.23.0 and v1.36.3; docs/crio.8.md there, "config".
func validate(ctx context.Context, v host.View, e facts.Engine, h engine.Handler, target string, before, after []byte) error {
	if e.Binary == "" {
		return nil // not installed yet; the image's package brings it
	}
	ask := func(data []byte) ([]byte, error) { return dump(ctx, v, e, withFile(e.Files, target, data)) }
	return engine.JudgeEdit(e, target, before, after, ask, func(was, is []byte) error { return judgeDump(was, is, h) })
}

func dump(ctx context.Context, v host.View, e facts.Engine, all []facts.File) ([]byte, error) {
	files := map[string][]byte{e.Config: {}, path.Join(e.Folder, "00-gpuadm-asks.conf"): {}} // both must be there to be read
	for _, f := range all {
		if f.Data != nil {
			files[f.Path] = f.Data
		}
	}
	return v.AskAbout(ctx, files, e.Binary, "--config", host.Scratch+e.Config, "--config-dir", host.Scratch+e.Folder, "config")
}

// Loads has CRI-O validate its present files as its next start would read them.
func Loads(e facts.Engine) things.PrecheckFunc {
	return engine.Loads(e, Configured, func(ctx context.Context, v host.View) error {
		_, err := dump(ctx, v, e, e.Files)
		return err
	})
}

// Configured reads CRI-O's configuration.
func Configured(e facts.Engine) (c engine.Configured) {
	state, err := readFiles(e.Files, e.Version)
	if err != nil {
		return engine.Configured{Unreadable: err}
	}
	c.Default, c.Programs = state.byDefault, map[string]string{}
	if state.forgets != "" && strings.HasPrefix(path.Base(toml.String(state.runtimes[state.byDefault], "runtime_path")), "nvidia") {
		c.Unread = []string{fmt.Sprintf("CRI-O %s forgets the runtime %s, as %s has another default", e.Version, state.builtin, state.forgets)}
	}
	for name, entry := range state.runtimes {
		c.Programs[name] = toml.String(entry, "runtime_path")
	}
	return c
}

// wantedBy is what gpuadm's drop-in asks for, handlers and a default one: nothing if it is missing,
// since an undo has removed it then.
func wantedBy(v host.View, file string) (handlers []string, byDefault string) {
	data, err := v.ReadFile(file)
	if err != nil {
		return nil, ""
	}
	tree, _ := toml.Values(data) // CRI-O judges it
	settings := toml.Sub(tree, "crio", "runtime")
	return slices.Sorted(maps.Keys(toml.Sub(settings, "runtimes"))), toml.String(settings, "default_runtime")
}

// waitFor waits until CRI-O answers CRI, and then asks what it has loaded: it must have the
// handlers, and the default one if that is named.
func waitFor(ctx context.Context, v host.View, e facts.Engine, handlers []string, byDefault string) error {
	var loaded []byte
	err := engine.UntilDone(ctx, func(ctx context.Context) error {
		_, _, err := engine.Status(ctx, v, e)
		if err == nil {
			loaded, err = host.AskSocket(ctx, v, e.Socket, "/config")
		}
		return err
	})
	if later := (host.Later{}); errors.As(err, &later) {
		return nil // no daemon runs here
	} else if err != nil {
		return fmt.Errorf("CRI-O does not answer at %s: %w", e.Socket, err)
	}
	return judgeLoaded(loaded, handlers, byDefault)
}

// judgeLoaded judges the TOML of what CRI-O has loaded. `crio status config` prints the same: it
// asks the same socket for the same path in all versions. CRI-O drops a handler whose program is
// missing, and reports that only in its log.
// Sources: ConfigInfo in internal/client/client.go and InspectConfigEndpoint in server/inspect.go
// of https://github.com/cri-o/cri-o at v1.23.0 and v1.36.3; ValidateRuntimes in
// pkg/config/config.go there.
func judgeLoaded(loaded []byte, handlers []string, byDefault string) error {
	tree, err := toml.Values(loaded)
	if err != nil {
		return fmt.Errorf("cannot read the configuration that CRI-O has loaded: %w", err)
	}
	settings := toml.Sub(tree, "crio", "runtime")
	for _, name := range handlers {
		if toml.Sub(settings, "runtimes")[name] == nil {
			return fmt.Errorf("CRI-O runs without the handler %s, as it does if the handler's program is missing: journalctl -u crio says why", name)
		}
	}
	if is := toml.String(settings, "default_runtime"); byDefault != "" && is != byDefault {
		return fmt.Errorf("CRI-O has loaded its configuration with the default runtime %q, not %q", is, byDefault)
	}
	return nil
}

// Ready waits until CRI-O answers with what gpuadm's drop-in asks for.
func Ready(ctx context.Context, v host.View, e facts.Engine) error {
	handlers, byDefault := wantedBy(v, path.Join(e.Folder, dropIn))
	return waitFor(ctx, v, e, handlers, byDefault)
}

// Answers says whether CRI-O answers now, and has loaded the handler if it has a name.
func Answers(ctx context.Context, v host.View, e facts.Engine, h engine.Handler) error {
	if h.Name == "" {
		return waitFor(ctx, v, e, nil, "")
	}
	return waitFor(ctx, v, e, []string{h.Name}, map[bool]string{true: h.Name}[h.Default])
}
