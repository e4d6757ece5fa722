// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// TestMayIsAskedBeforeEachStage: a notice that comes in the midst of a run keeps the stages after it from beginning, and what
// is converged does not ask.
func TestMayIsAskedBeforeEachStage(t *testing.T) {
	n := node(t)
	named := func(name string, want converge.Want) converge.Stage {
		st := stage(want)
		st.Name = name
		return st
	}
	e := engineOf(t, named("one", things.Exact("/etc/one", nil, 0o644, "")), named("two", things.Exact("/etc/two", nil, 0o644, "")))
	asked, leaving := 0, &trouble.Error{What: "cannot begin: the machine goes"}
	e.May = func(context.Context, host.View, facts.Facts) error {
		if asked++; asked > 1 {
			return leaving
		}
		return nil
	}
	if _, err := e.Apply(context.Background(), n); !errors.Is(err, leaving) || trouble.Passes(err) {
		t.Errorf("ends with %v", err)
	}
	if _, err := n.Stat("/etc/one"); err != nil {
		t.Errorf("what was done before the notice: %v", err)
	}
	if _, err := n.Stat("/etc/two"); err == nil {
		t.Error("a stage began after the notice")
	}
	e.Stages = e.Stages[:1]
	if apply(t, n, e); asked != 2 {
		t.Errorf("asked %d times; a converged stage does not ask", asked)
	}
}
