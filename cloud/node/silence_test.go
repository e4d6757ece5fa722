// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Silence is remembered for a moment, and only that: what else is wrong is asked again, and so is a server that has answered.
func TestSilence(t *testing.T) {
	n, err := simhost.New([]byte(joins.Machine))
	joins.Must(t, err)
	q, asked := &Silence{}, 0
	ask := func(answer error) error {
		return q.Ask(t.Context(), n, func(context.Context) error { asked++; return answer })
	}
	wrong := errors.New("wrong")
	for i, step := range []struct {
		later        time.Duration
		answer, want error
		asked        int
	}{
		{0, wrong, wrong, 1},
		{0, StillWaits{}, StillWaits{}, 2},
		{silenceServes - time.Second, nil, StillWaits{}, 2},
		{2 * time.Second, StillWaits{}, StillWaits{}, 3},
		{-time.Hour, nil, nil, 4}, // the clock was set back
		{0, nil, nil, 5},
	} {
		n.Advance(step.later)
		if err := ask(step.answer); !errors.Is(err, step.want) || asked != step.asked {
			t.Errorf("step %d: %v, asked %d times", i, err, asked)
		}
	}
}

// All questions together have one limit, and what is not known by then may be known later.
func TestSilenceEnds(t *testing.T) {
	n, err := simhost.New([]byte(joins.Machine))
	joins.Must(t, err)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := (&Silence{}).Ask(t.Context(), n, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if took := time.Since(began); took != joinPatience || !trouble.Passes(err) {
			t.Errorf("%v: %v", took, err)
		}
	})
}
