// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/crio"
	"github.com/gpuadm/gpuadm/runtime/docker"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Ready waits until the daemon behind a restart thing answers CRI again. What a restart thing reads starts with the
// daemon's configuration, which says where it listens.
func Ready(ctx context.Context, v host.View, unit string, files []string) error {
	if len(files) == 0 {
		return nil
	}
	engines, err := facts.Engines(ctx, v)
	if err != nil {
		return err
	}
	for _, e := range engines {
		switch {
		case e.Config != files[0] || engine.UnitOf(e) != unit:
		case e.Name == "crio":
			return crio.Ready(ctx, v, e)
		case e.Name == "containerd":
			return containerd.Answers(ctx, v, containerd.Socket(e), "")
		}
	}
	return nil
}

// Answers says whether the container engine that pods run on answers now, and has loaded the handler that the spec asks for.
func Answers(ctx context.Context, v host.View, s spec.Spec, f facts.Facts) error {
	if !s.Has("runtime") {
		return nil
	}
	e, err := chosen(s.Runtime, f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, engine.AnswerPatience)
	defer cancel()
	h := engine.PlainHandler(s.Runtime)
	if s.Runtime.Inject == "cdi" {
		h.Name, h.Default = "", false
	}
	switch e.Name {
	case "crio":
		return crio.Answers(ctx, v, e, h)
	case "docker":
		return docker.Answers(ctx, v, e, h)
	}
	if h.Name != "" {
		h.Name = containerd.HandlerFor(s, f, e).Name
	}
	return containerd.Answers(ctx, v, containerd.Socket(e), h.Name)
}

// NoNetwork returns the reason for which an engine that answers says that the pods' network is not ready; "" if it says nothing of that.
func NoNetwork(ctx context.Context, v host.View, e facts.Engine) string {
	at := containerd.Socket(e)
	if e.Name == "crio" {
		at = crio.Socket(e)
	}
	return containerd.NoNetwork(ctx, v, at)
}
