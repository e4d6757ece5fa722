// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
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
		return prove(ctx, v, e, before, after)
	}
	wants = append(wants, things.Edited(things.NewFile(e.Config, TakeOut).Formed(Form).Validated(judge), edit, h.Why()))
	restart := things.Restart(engine.UnitOf(e), []string{e.Config}, ready, "Docker runs with its configuration")
	restart.Thing = restartThing{restart.Thing.(converge.Follower), edited}
	return append(wants, restart), nil
}

// prove has dockerd judge the file beside the options that its unit gives it: dockerd refuses a key that is in both, and would not start
// again. It runs nothing.
// Source: --validate in https://docs.docker.com/reference/cli/dockerd/; commit 8f80e551 of https://github.com/moby/moby (v23.0.0), start
// in cmd/dockerd/daemon.go at v26.1.5, and https://github.com/moby/moby/issues/42393. Before 23.0 gpuadm's own parser has to do, and
// Docker itself when it reads the file.
func prove(ctx context.Context, v host.View, e facts.Engine, before, after []byte) error {
	if e.Binary == "" || after == nil || !since(e.Version, 23, 0) {
		return nil
	}
	validate := func(data []byte, options []string) error {
		argv := slices.Concat([]string{e.Binary}, options, []string{"--validate", "--config-file", host.Scratch + e.Config})
		_, err := v.AskAbout(ctx, map[string][]byte{e.Config: data}, argv...)
		return err
	}
	options := e.Args[min(1, len(e.Args)):]
	err := validate(after, options)
	if err == nil || errors.As(err, &host.Later{}) {
		return nil
	}
	t := &trouble.Error{
		What: fmt.Sprintf("cannot edit %s: Docker would not take the result: %v", e.Config, err),
		Try:  []string{"report it with " + trouble.Command("facts --record") + " and the configuration: gpuadm should have known"}, Err: err,
	}
	switch {
	case len(options) > 0 && validate(after, nil) == nil:
		t.Because = []string{e.Unit + " starts it with " + strings.Join(options, " ")}
		t.Try = []string{"take the option out of the unit (systemctl cat " + e.Unit + "), and write it into " + e.Config}
	case before != nil && validate(before, options) != nil:
		t.What = fmt.Sprintf("cannot edit %s: Docker rejects it before the edit: %v", e.Config, err)
		t.Try = []string{fmt.Sprintf("%s --validate --config-file %s, which says where", e.Binary, e.Config)}
	}
	return t
}

// Notes say what a person may want to know of Docker's configuration.
func Notes(e facts.Engine, k facts.Kubelet, h engine.Handler) (notes []string) {
	if k.Endpoint != "" && !k.Uses(e) {
		notes = append(notes,
			fmt.Sprintf("kubelet talks to %s, not to Docker: this is for Docker's own containers, and not for pods", k.Endpoint))
	}
	has, _ := takesCDI(e.Version)
	d, err := jsonedit.Parse(e.Files[0].Data)
	switch {
	case !h.CDI || err != nil:
	case !has:
		notes = append(notes,
			fmt.Sprintf("Docker %s has no CDI, which came with 25.0: containers get GPUs by --runtime %s only", e.Version, h.Name))
	case string(d.Text(featuresKey, "cdi")) == "false":
		notes = append(notes,
			fmt.Sprintf("%s switches CDI off by features.cdi, and keeps it off: containers get GPUs by --runtime %s only", e.Config, h.Name))
	}
	return notes
}

// Reread wants Docker to run with its present configuration.
func Reread(e facts.Engine, why string) converge.Want {
	w := things.Restart(engine.UnitOf(e), []string{e.Config}, ready, why)
	w.Thing = restartThing{Follower: w.Thing.(converge.Follower)}
	return w
}

// Configured reads Docker's daemon.json.
func Configured(e facts.Engine) (c engine.Configured) {
	if len(e.Files) > 0 && len(e.Files[0].Data) > 0 {
		_, c.Unreadable = jsonedit.Parse(e.Files[0].Data)
	}
	return c
}
