// SPDX-License-Identifier: Apache-2.0

package labstage

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Step is a command, and another that only looks and must say yes afterwards. Its state is "done"
// or "".
type Step struct {
	Label string
	Ask   []string // exits with 0: done; 1: not done; anything else is an error
	Do    []string
	Undo  []string // empty: undo cannot take it back, and the want says so in Keeps
}

// Want wants the step done.
func (s Step) Want(why string) converge.Want {
	want := converge.Want{
		Thing: s,
		Why:   why,
		To:    func(converge.State) (converge.State, error) { return "done", nil },
	}
	if len(s.Undo) == 0 {
		want.Keeps = "what " + s.Do[0] + " did"
	}
	return want
}

// Ref is the thing's kind and name, and what else builds it again.
func (s Step) Ref() converge.Ref { return converge.Ref{Kind: "step", Name: s.Label} }

// Look asks whether the step is done.
func (s Step) Look(ctx context.Context, v host.View) (converge.State, error) {
	_, err := v.Ask(ctx, s.Ask...)
	if err == nil {
		return "done", nil
	}
	if failed := (*host.CommandError)(nil); errors.As(err, &failed) && failed.Code == 1 {
		return "", nil
	}
	return "", err
}

// Make runs the command, or the one that takes it back.
func (s Step) Make(ctx context.Context, h host.Host, to converge.State) error {
	argv := s.Do
	if to == "" {
		argv = s.Undo
	}
	if len(argv) == 0 {
		return fmt.Errorf("cannot take back %s: there is no way back", s.Label)
	}

	_, err := h.Do(ctx, argv...)
	return err
}
