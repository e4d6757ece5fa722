// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// reportEvery is how often a run reports what it waits for.
const reportEvery = 15 * time.Second

// reportedWait is a wait that reports what it waits for: at once, and then every reportEvery.
type reportedWait struct {
	view       host.View
	began      time.Time
	limit      time.Duration
	paused     time.Duration // between the requests so far
	reported   bool
	reportedAt time.Duration // after it began
}

func newReportedWait(v host.View, limit time.Duration) *reportedWait {
	return &reportedWait{view: v, began: v.Now(), limit: limit}
}

// elapsed returns how long it has waited, including the requests: one to a server that does not
// answer takes half a minute.
func (w *reportedWait) elapsed() time.Duration {
	return max(w.paused, w.view.Now().Sub(w.began))
}

// over reports whether it has waited long enough.
func (w *reportedWait) over() bool { return w.elapsed() >= w.limit }

// report says what it waits for, if a report is due.
func (w *reportedWait) report(ctx context.Context, problem string) {
	elapsed := w.elapsed()
	if w.reported && elapsed-w.reportedAt < reportEvery {
		return
	}
	w.reported = true
	w.reportedAt = elapsed

	const clock = "15:04:05"
	since := w.began.Format(clock)
	until := w.began.Add(w.limit).Format(clock)
	text := fmt.Sprintf("%s; waiting since %s, until %s at the latest", problem, since, until)
	converge.Say(ctx, converge.Waiting, text)
}
