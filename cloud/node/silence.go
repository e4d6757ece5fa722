// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	// joinPatience is how long all questions of one look at the cluster may take together; one alone gives up a little before.
	joinPatience = 33 * time.Second
	// silenceServes is how long a server that did not answer is taken for silent: a run looks at its stages several times, and
	// each look would wait as long again.
	silenceServes = time.Minute
)

// Silence is what a run knows of an API server that does not answer a machine that wants to join.
type Silence struct {
	mu  sync.Mutex
	err error     // what the last question ended with, where waiting may help
	at  time.Time // when, by the machine's clock
}

// Ask puts questions to the server, unless it was silent a moment ago. One that was silent before that gets one try.
func (q *Silence) Ask(ctx context.Context, v host.View, questions func(context.Context) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.fresh(v); err != nil {
		return err
	}
	within, stop := context.WithTimeout(ctx, joinPatience)
	defer stop()
	if q.err != nil {
		within = kube.Within(within, 0)
	}
	err := questions(within)
	if within.Err() != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) && !trouble.Passes(err) {
		err = trouble.Wait{
			For: fmt.Sprintf("the API server answers too slowly to join: after %v not all questions were answered", joinPatience),
			Try: []string{"look at the load of the control plane and at the way there; then run the same command again"},
		}
	}
	if q.err = nil; err != nil && ctx.Err() == nil && trouble.Passes(err) {
		q.err, q.at = err, v.Now()
	}
	return err
}

// known is what the server's silence was a moment ago; nil if it was not silent.
func (q *Silence) known(v host.View) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fresh(v)
}

// fresh is known; q is locked.
func (q *Silence) fresh(v host.View) error {
	if age := v.Now().Sub(q.at); age < 0 || age >= silenceServes {
		return nil
	}
	return q.err
}
