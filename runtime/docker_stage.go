// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/jsonedit"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// dockerWants edits daemon.json, and wants Docker to run with it.
func dockerWants(s spec.Spec, f facts.Facts, e facts.Engine) ([]converge.Want, error) {
	h := plainHandler(s.Runtime)
	if othersWrite(s.Runtime, e) {
		return []converge.Want{verify(e, h, dockerLacksOf(e, h))}, nil
	}
	found := e.Files[0].Data
	var wants []converge.Want
	program := h.Binary
	if d, err := jsonedit.Parse(found); err == nil {
		if owners, shim := dockerProgram(d, h.Name); owners != "" && !shim && owners != h.Binary {
			wants, program = append(wants, ownersProgram(h.Name, e.Config, owners, "")), owners
		}
	}
	h, works := defaultRuns(s, f, h, program, dockerLacksOf(e, h) != "")
	wants = append(wants, works...)
	edited, err := editDocker(e.Config, e.Version, h, found)
	if err != nil {
		return nil, err
	}
	wants = append(wants, things.Folders(path.Dir(e.Config), "holds the engine's configuration")...)
	edit := func(found []byte) ([]byte, error) { return editDocker(e.Config, e.Version, h, found) }
	judge := func(ctx context.Context, v host.View, before, after []byte) error {
		return proveDocker(ctx, v, e, before, after)
	}
	wants = append(wants, things.Edited(things.NewFile(e.Config, TakeOutDocker).Formed(FormDocker).Proven(judge), edit, h.Why()))
	restart := things.Restart(unitOf(e), []string{e.Config}, dockerReady, "Docker runs with its configuration")
	restart.Thing = dockerRestart{restart.Thing.(converge.Settler), edited}
	return append(wants, restart), nil
}

// proveDocker has dockerd judge the file. It runs nothing, and does not see the options of the machine's unit.
// Source: --validate in https://docs.docker.com/reference/cli/dockerd/; commit 8f80e551 of https://github.com/moby/moby (v23.0.0), and
// start in cmd/dockerd/daemon.go at v26.1.5. Before 23.0 gpuadm's own parser has to do, and Docker itself when it reads the file.
func proveDocker(ctx context.Context, v host.View, e facts.Engine, before, after []byte) error {
	if e.Binary == "" || after == nil || !dockerSince(e.Version, 23, 0) {
		return nil
	}
	validate := func(data []byte) error {
		_, err := v.AskAbout(ctx, map[string][]byte{e.Config: data}, e.Binary, "--validate", "--config-file", host.Scratch+e.Config)
		return err
	}
	err := validate(after)
	if err == nil || errors.As(err, &host.Later{}) {
		return nil
	}
	t := &trouble.Error{
		What: fmt.Sprintf("cannot edit %s: Docker would not take the result: %v", e.Config, err),
		Try:  []string{"report it with " + trouble.Command("facts --record") + " and the configuration: gpuadm should have known"}, Err: err,
	}
	if before != nil && validate(before) != nil {
		t.What = fmt.Sprintf("cannot edit %s: Docker rejects it before the edit: %v", e.Config, err)
		t.Try = []string{fmt.Sprintf("%s --validate --config-file %s, which says where", e.Binary, e.Config)}
	}
	return t
}

// dockerNotes say what a person may want to know of Docker's configuration.
func dockerNotes(e facts.Engine, k facts.Kubelet, h Handler) (notes []string) {
	if k.Endpoint != "" && !k.Uses(e) {
		notes = append(notes,
			fmt.Sprintf("kubelet talks to %s, not to Docker: this is for Docker's own containers, and not for pods", k.Endpoint))
	}
	has, _ := dockerCDI(e.Version)
	d, err := jsonedit.Parse(e.Files[0].Data)
	switch {
	case !h.CDI || err != nil:
	case !has:
		notes = append(notes,
			fmt.Sprintf("Docker %s has no CDI, which came with 25.0: containers get GPUs by --runtime %s only", e.Version, h.Name))
	case string(d.Text(dockerFeatures, "cdi")) == "false":
		notes = append(notes,
			fmt.Sprintf("%s switches CDI off by features.cdi, and keeps it off: containers get GPUs by --runtime %s only", e.Config, h.Name))
	}
	return notes
}

// dockerReread wants Docker to run with its present configuration.
func dockerReread(e facts.Engine, why string) converge.Want {
	w := things.Restart(unitOf(e), []string{e.Config}, dockerReady, why)
	w.Thing = dockerRestart{Settler: w.Thing.(converge.Settler)}
	return w
}

// dockerConfigured reads Docker's daemon.json.
func dockerConfigured(e facts.Engine) (c Configured) {
	if len(e.Files) > 0 && len(e.Files[0].Data) > 0 {
		_, c.Unreadable = jsonedit.Parse(e.Files[0].Data)
	}
	return c
}
