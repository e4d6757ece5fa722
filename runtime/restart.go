// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

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
	// answerPatience is how long a daemon has that was not touched.
	answerPatience = 3 * time.Second
)

// restart wants an engine to have started after its files were changed. It says where kubelet restarts with it.
func restart(f facts.Facts, e facts.Engine, files []string, ready things.ReadyFunc, why string) converge.Want {
	unit := unitOf(e)
	w := things.Restart(unit, files, ready, why)
	if unit == f.Kubelet.Unit || slices.Contains(f.Kubelet.Requires, unit) {
		w.Breaks = append(w.Breaks, "restart-kubelet")
	}
	return w
}

// untilDone tries until it is done or a daemon's patience is over. A Later is done, too.
func untilDone(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil || errors.As(err, &host.Later{}) || host.Pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}
