// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/crio"
	"github.com/gpuadm/gpuadm/runtime/docker"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Ready waits until the engine that runs in a unit answers CRI again. files[0] is the engine's
// configuration file: Ready finds the engine by it.
func Ready(ctx context.Context, v host.View, unit string, files []string) error {
	if len(files) == 0 {
		return nil
	}

	e, err := engine.Reading(ctx, v, files[0], unit)
	switch e.Name {
	case "crio":
		return crio.Ready(ctx, v, e)
	case "containerd":
		return containerd.Answers(ctx, v, e, engine.Handler{})
	}

	return err
}

// Answers returns an error unless the engine that pods run on answers now, and has loaded the
// handler that the spec asks for.
func Answers(ctx context.Context, v host.View, s spec.Spec, f facts.Facts) error {
	if !s.Has("runtime") {
		return nil
	}
	e, err := chosen(s.Runtime, f)
	if err != nil {
		return err
	}

	handler := engine.PlainHandler(s.Runtime)
	switch {
	case s.Runtime.Inject == "cdi":
		handler.Name = ""
		handler.Default = false
	case e.Name == "containerd":
		handler.Name = containerd.HandlerFor(s, f, e).Name
	}

	ctx, cancel := context.WithTimeout(ctx, engine.AnswerPatience)
	defer cancel()
	return configurerOf(e).answers(ctx, v, e, handler)
}

// ReadConfigured reads an engine's configuration.
func ReadConfigured(e facts.Engine) engine.Configured {
	return configurerOf(e).configured(e)
}

// Reread wants the engine that pods run on to have started after the last change of its
// configuration. It edits nothing.
func Reread(f facts.Facts) ([]converge.Want, error) {
	e, err := ForPods(f)
	if err != nil {
		return nil, err
	}

	why := e.Name + " reads its configuration when it starts"
	if e.Name == "docker" {
		return []converge.Want{docker.Restart(e, nil, why)}, nil
	}

	restart := containerd.Reread(f, e, Ready, why)
	if e.Name == "crio" {
		restart = engine.Restart(f, e, []string{e.Config, e.Folder}, Ready, why)
	}
	restart = things.Judged(restart, Verdict(engine.UnitOf(e), []string{e.Config}))
	return []converge.Want{things.Prechecked(restart, Loads(e))}, nil
}

// Verdict judges the engine that runs in a unit, and reads one of these files: see Judged in
// internal/things.
func Verdict(unit string, files []string) things.PrecheckFunc {
	judge := func(ctx context.Context, v host.View, e facts.Engine) error {
		return configurerOf(e).verdict(ctx, v, e)
	}
	config := ""
	if len(files) > 0 {
		config = files[0]
	}
	return engine.Fresh(config, unit, judge)
}

// Loads says why an engine would not serve pods after its next start.
func Loads(e facts.Engine) things.PrecheckFunc { return configurerOf(e).loads(e) }
