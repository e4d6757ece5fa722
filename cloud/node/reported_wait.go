// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// reportEvery is how often a run says what it waits for.
const reportEvery = 15 * time.Second

// reportedWait is a wait that says what it waits for: at once, and then every reportEvery.
type reportedWait struct {
	view   host.View
	began  time.Time
	limit  time.Duration
	Paused time.Duration // between the questions so far
	told   time.Duration
	spoke  bool
}

func StartWait(v host.View, limit time.Duration) *reportedWait {
	return &reportedWait{view: v, began: v.Now(), limit: limit}
}

// so is for how long it has waited: what the questions took counts too, since a server that does not answer takes half a minute
// for each.
func (w *reportedWait) so() time.Duration { return max(w.Paused, w.view.Now().Sub(w.began)) }

// Over says whether it has waited long enough.
func (w *reportedWait) Over() bool { return w.so() >= w.limit }

// Tell says what it waits for, if that is due.
func (w *reportedWait) Tell(ctx context.Context, problem string) {
	so := w.so()
	if w.spoke && so-w.told < reportEvery {
		return
	}
	w.spoke, w.told = true, so
	const clock = "15:04:05"
	converge.Say(ctx, fmt.Sprintf("%s; waiting since %s, until %s at the latest", problem, w.began.Format(clock), w.began.Add(w.limit).Format(clock)))
}
