// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

const (
	// patience is how long a daemon has to answer CRI after its restart. Most start within a
	// second; on nodes with thousands of containers many seconds were seen.
	patience = 60 * time.Second
	// AnswerPatience is how long a daemon has to answer CRI where gpuadm has not restarted it.
	AnswerPatience = 3 * time.Second
)

// Restart wants an engine to have started after its files were changed. Where kubelet restarts with
// it, the want says so.
func Restart(
	f facts.Facts, e facts.Engine, files []string, ready things.ReadyFunc, why string,
) converge.Want {
	unit := UnitOf(e)
	want := things.Restart(unit, files, ready, why)
	if e.Child {
		want.Thing = things.NewChild(unit, e.Socket, files, ready, nil)
	}
	if unit == f.Kubelet.Unit || slices.Contains(f.Kubelet.Requires, unit) {
		want.Breaks = append(want.Breaks, "restart-kubelet")
	}
	return want
}

// UntilDone calls try until it succeeds, returns a host.Later, or has failed for as long as
// patience.
func UntilDone(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	for {
		err := try(ctx)
		if err == nil || errors.As(err, &host.Later{}) {
			return err
		}
		if host.Pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}
