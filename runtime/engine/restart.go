// SPDX-FileCopyrightText: The gpuadm authors
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
	// patience is how long a daemon has to answer CRI after its restart. Starting takes well under a second; a node
	// with thousands of containers to look over has been seen to take many.
	patience = 60 * time.Second
	// AnswerPatience is how long a daemon has that was not touched.
	AnswerPatience = 3 * time.Second
)

// Restart wants an engine to have started after its files were changed. It says where kubelet restarts with it.
func Restart(f facts.Facts, e facts.Engine, files []string, ready things.ReadyFunc, why string) converge.Want {
	unit := UnitOf(e)
	w := things.Restart(unit, files, ready, why)
	if unit == f.Kubelet.Unit || slices.Contains(f.Kubelet.Requires, unit) {
		w.Breaks = append(w.Breaks, "restart-kubelet")
	}
	return w
}

// UntilDone tries until it is done or a daemon's patience is over. A Later is done, too.
func UntilDone(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil || errors.As(err, &host.Later{}) || host.Pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// UnitOf is the unit that runs an engine.
func UnitOf(e facts.Engine) string {
	if e.Unit == "" {
		return e.Name + ".service"
	}
	return e.Unit
}
