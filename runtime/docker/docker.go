// SPDX-License-Identifier: Apache-2.0

// Package docker edits Docker's daemon.json, has Docker itself validate the result, and reloads
// Docker where a restart is not needed.
package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/jsonedit"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Form is what the journal calls the form of Docker's daemon.json, whose edits TakeOut takes out.
const Form = "docker"

// Docker's keys, in https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file and
// daemon/config of https://github.com/moby/moby at v20.10.24 and v28.5.2.
const (
	runtimesKey = "runtimes"
	defaultKey  = "default-runtime"
	featuresKey = "features"
)

// takesCDI says whether this Docker has CDI (25.0 and later), and whether CDI is on unless
// features.cdi is false (28.2 and later).
// Sources: commits 7ec9561a, d22c775e (v25.0.0) and 4cecce03 (v28.2.0) of
// https://github.com/moby/moby; https://docs.docker.com/engine/release-notes/.
func takesCDI(version string) (has, byDefault bool) {
	return since(version, 25, 0), since(version, 28, 2)
}

// since says whether a Docker has this version or a newer one. An unknown version counts as older.
func since(version string, major, minor int) bool {
	is, andMinor, known := engine.ParseVersion(version)
	return known && (is > major || is == major && andMinor >= minor)
}

// Edit changes found, the bytes of daemon.json (nil: not there), so that Docker has the runtime. A
// runtime of this name, or a features.cdi, that is in the file already stays.
func Edit(file, version string, h engine.Handler, found []byte) ([]byte, error) {
	d, err := jsonedit.Parse(found)
	if err != nil {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot edit %s: it is no JSON that Docker reads: %v", file, err),
			Try:  []string{"fix it; journalctl -u docker says the same when Docker starts"}, Err: err,
		}
	}
	if h.Name == "runc" {
		return nil, &trouble.Error{
			What: "cannot configure Docker: it keeps the name runc for its own runtime", Try: []string{"give the handler another name in [runtime]"},
		}
	}
	type value struct {
		text string
		path []string
	}
	var wanted []value
	if program, _ := programOf(d, h.Name); program == "" {
		wanted = append(wanted, value{jsonedit.Quote(h.Binary), []string{runtimesKey, h.Name, "path"}})
	}
	if h.Default {
		wanted = append(wanted, value{jsonedit.Quote(h.Name), []string{defaultKey}})
	}
	if has, byDefault := takesCDI(version); h.CDI && has && !byDefault && d.Text(featuresKey, "cdi") == nil {
		wanted = append(wanted, value{"true", []string{featuresKey, "cdi"}})
	}
	out := found
	for _, w := range wanted {
		if d, err = jsonedit.Parse(out); err == nil {
			out, err = d.Set(w.text, w.path...)
		}
		if err != nil {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot edit %s: %v", file, err), Try: []string{"fix it; Docker refuses it too"}, Err: err,
			}
		}
	}
	return out, nil
}

// programOf is the program of a runtime, or its shim; "" if there is no such runtime. Docker reads
// the fields of a runtime in any case, as encoding/json does.
func programOf(d *jsonedit.Doc, name string) (program string, shim bool) {
	var r struct {
		Path string `json:"path"`
		Type string `json:"runtimeType"`
	}
	if json.Unmarshal(d.Text(runtimesKey, name), &r) != nil {
		return "", false
	}
	if r.Path == "" {
		return r.Type, r.Type != ""
	}
	return r.Path, false
}

// TakeOut takes gpuadm's edit of daemon.json (before → after) out of found, which was changed
// outside gpuadm since, key by key. A runtime that gpuadm added stays as a whole if another process
// has added keys to it, since half a runtime is worse than one too many; and if another process has
// made it the default: Docker does not start without it.
func TakeOut(before, after, found []byte) (rest []byte, left []string, err error) {
	became, err := jsonedit.Parse(after)
	if err != nil {
		return nil, nil, err
	}
	return jsonedit.TakeOut(before, after, found, func(is *jsonedit.Doc, c jsonedit.Change) string {
		if len(c.Path) < 2 || c.Path[0] != runtimesKey || c.Old != nil {
			return ""
		}
		entry := c.Path[:2]
		for _, key := range is.Keys(entry...) {
			if !slices.Contains(became.Keys(entry...), key) {
				return fmt.Sprintf("%s is there, with %s", strings.Join(entry, "."), key)
			}
		}
		if named := string(is.Text(defaultKey)); named == jsonedit.Quote(entry[1]) && string(became.Text(defaultKey)) != named {
			return fmt.Sprintf("%s is there, as the default runtime that was set outside gpuadm", strings.Join(entry, "."))
		}
		return ""
	})
}

// lacks says what a daemon.json that others write lacks of a runtime, "" if nothing.
func lacks(e facts.Engine, h engine.Handler) string {
	d, err := jsonedit.Parse(e.Files[0].Data)
	if err != nil {
		return e.Config + " cannot have it: " + err.Error()
	}
	switch program, _ := programOf(d, h.Name); {
	case program == "":
		return e.Config + " does not have it"
	case h.Default && string(d.Text(defaultKey)) != jsonedit.Quote(h.Name):
		return e.Config + " has another default runtime"
	}
	return ""
}

// Wants edits daemon.json, and wants Docker to run with it.
func Wants(s spec.Spec, f facts.Facts, e facts.Engine) ([]converge.Want, error) {
	h := engine.PlainHandler(s.Runtime)
	if engine.OthersWrite(s.Runtime, e) {
		return []converge.Want{engine.Verify(e, h, lacks(e, h))}, nil
	}
	found := e.Files[0].Data
	var wants []converge.Want
	program := h.Binary
	if d, err := jsonedit.Parse(found); err == nil {
		if owners, shim := programOf(d, h.Name); owners != "" && !shim && owners != h.Binary {
			wants, program = append(wants, engine.OwnersProgram(h.Name, e.Config, owners, "")), owners
		}
	}
	h, works := engine.DefaultRuns(s, f, h, program, lacks(e, h) != "")
	wants = append(wants, works...)
	edited, err := Edit(e.Config, e.Version, h, found)
	if err != nil {
		return nil, err
	}
	wants = append(wants, things.Folders(path.Dir(e.Config), "holds the engine's configuration")...)
	edit := func(found []byte) ([]byte, error) { return Edit(e.Config, e.Version, h, found) }
	judge := func(ctx context.Context, v host.View, before, after []byte) error {
		return validateEdit(ctx, v, e, before, after)
	}
	wants = append(wants, things.Edited(things.NewFile(e.Config, TakeOut).Formed(Form).Validated(judge), edit, h.Why()))
	return append(wants, Restart(e, edited, "Docker runs with its configuration")), nil
}

// validateEdit has dockerd validate the file together with the options of its unit: dockerd does
// not start with a key that is in both. The validation starts nothing.
// Source: --validate in https://docs.docker.com/reference/cli/dockerd/; commit 8f80e551 of
// https://github.com/moby/moby (v23.0.0), start in cmd/dockerd/daemon.go at v26.1.5, and
// https://github.com/moby/moby/issues/42393. Docker before 23.0 cannot validate: there gpuadm's own
// parser has to do.
func validateEdit(ctx context.Context, v host.View, e facts.Engine, before, after []byte) error {
	if t := inUnit(v, e, after); t != nil {
		return t
	}
	options := e.Args[min(1, len(e.Args)):]
	err := validate(ctx, v, e, after, options)
	if err == nil {
		return nil
	}
	t := &trouble.Error{
		What: fmt.Sprintf("cannot edit %s: Docker would not take the result: %v", e.Config, err),
		Try:  []string{"report it with " + trouble.Command("facts --record") + " and the configuration: gpuadm should have known"}, Err: err,
	}
	switch {
	case len(options) > 0 && validate(ctx, v, e, after, nil) == nil:
		t.Because = []string{e.Unit + " starts it with " + strings.Join(options, " ")}
		t.Try = []string{"take the option out of the unit (systemctl cat " + e.Unit + "), and write it into " + e.Config}
	case before != nil && validate(ctx, v, e, before, options) != nil:
		t.What = fmt.Sprintf("cannot edit %s: Docker rejects it before the edit: %v", e.Config, err)
		t.Try = []string{fmt.Sprintf("%s --validate --config-file %s, which says where", e.Binary, e.Config)}
	}
	return t
}

// inUnit refuses a default runtime that is in the file and in the unit's options: Docker refuses a
// key that both have, except runtimes.
// Sources: findConfigurationConflicts in daemon/config/config.go of https://github.com/moby/moby
// (v20.10.24 and v28.5.2); https://docs.docker.com/engine/daemon/troubleshoot/ on conflicts between
// the daemon.json and startup scripts.
func inUnit(v host.View, e facts.Engine, after []byte) error {
	d, err := jsonedit.Parse(after)
	if given := facts.Options(e.Args, defaultKey); err != nil || d.Text(defaultKey) == nil || given == nil {
		return nil
	}
	const option = "--" + defaultKey
	from := "systemctl cat " + e.Unit + " shows where"
	for _, name := range e.Started {
		if text, _ := v.ReadFile(name); strings.Contains(string(text), option) {
			from = "it is in " + name
		}
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot edit %s: Docker does not start with %s both in it and in its unit", e.Config, defaultKey),
		Because: []string{e.Unit + " starts it with " + option + ": " + from},
		Try:     []string{"take " + option + " out of the unit, then: systemctl daemon-reload", "or leave set_as_default out of [runtime]"},
	}
}

// Loads has Docker validate its present daemon.json as its next start would read it.
func Loads(e facts.Engine) things.PrecheckFunc {
	return engine.Loads(e, Configured, func(ctx context.Context, v host.View) error {
		return validate(ctx, v, e, e.Files[0].Data, e.Args[min(1, len(e.Args)):])
	})
}

// validate has dockerd validate a daemon.json together with these options; nil where it cannot be
// asked.
func validate(ctx context.Context, v host.View, e facts.Engine, data []byte, options []string) error {
	if e.Binary == "" || data == nil || !since(e.Version, 23, 0) {
		return nil
	}
	argv := slices.Concat([]string{e.Binary}, options, []string{"--validate", "--config-file", host.Scratch + e.Config})
	_, err := v.AskAbout(ctx, map[string][]byte{e.Config: data}, argv...)
	if errors.As(err, &host.Later{}) {
		return nil
	}
	return err
}

// Notes say what an operator may want to know of Docker's configuration.
func Notes(e facts.Engine, k facts.Kubelet, h engine.Handler) (notes []string) {
	if k.Endpoint != "" && !k.Uses(e) {
		notes = append(notes,
			fmt.Sprintf("kubelet talks to %s, not to Docker: this is for Docker's own containers, and not for pods", k.Endpoint))
	}
	has, _ := takesCDI(e.Version)
	d, err := jsonedit.Parse(e.Files[0].Data)
	switch {
	case !h.CDI || err != nil:
	case !has && e.Version != "":
		notes = append(notes,
			fmt.Sprintf("Docker %s has no CDI, which came with 25.0: containers get GPUs by --runtime %s only", e.Version, h.Name))
	case string(d.Text(featuresKey, "cdi")) == "false":
		notes = append(notes,
			fmt.Sprintf("%s switches CDI off by features.cdi, and keeps it off: containers get GPUs by --runtime %s only", e.Config, h.Name))
	}
	return notes
}

// Restart wants Docker to run with its configuration; edited is daemon.json as it will be, nil
// where it is as it is.
func Restart(e facts.Engine, edited []byte, why string) converge.Want {
	w := things.Restart(engine.UnitOf(e), []string{e.Config}, ready, why)
	w.Thing = restartThing{w.Thing.(converge.Follower), edited, Loads(e)}
	return w
}

// Configured reads Docker's daemon.json.
func Configured(e facts.Engine) (c engine.Configured) {
	if len(e.Files) > 0 && len(e.Files[0].Data) > 0 {
		_, c.Unreadable = jsonedit.Parse(e.Files[0].Data)
	}
	return c
}
