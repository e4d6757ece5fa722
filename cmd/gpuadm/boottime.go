// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuadm/gpuadm/internal/boottime"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
)

// addBoot adds to a status where the time of the last boot went. A machine without systemd has no
// such times.
func (c *common) addBoot(ctx context.Context, v host.View, s *converge.Status) {
	if !v.Live() {
		return
	}

	units := boottime.Units{
		Boot:    stages.BootUnit,
		Kubelet: s.Host.Facts.Kubelet.Unit,
		Ready:   stages.ReadyUnit,
	}
	var runs []boottime.Run
	for _, r := range s.Runs {
		runs = append(runs, boottime.Run{
			ID:   r.ID,
			Time: r.Time,
			Took: r.Took.String(),
		})
	}

	b, err := boottime.Read(ctx, v, units, runs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		s.Notes = append(s.Notes, fmt.Sprintf("the times of the last boot cannot be read: %v", err))
	default:
		s.Boot = b
	}
}

// bootText prints where the time of a boot went, for people and for reports of bugs.
func (c *common) bootText(b *boottime.Boot) {
	if b == nil {
		return
	}

	seconds := func(millis int64) string { return fmt.Sprintf("%.1f", float64(millis)/1000) }
	begins := map[string]string{
		"power-on":  "power-on",
		"kernel":    "the kernel's start: its firmware tells no times",
		"container": "the container's start",
	}
	printf(c.stdout, "\nlast boot, in seconds from %s\n", cmp.Or(begins[b.From], b.From))
	for _, step := range b.Steps {
		took := ""
		if step.Took > 0 {
			took = seconds(step.Took)
		}
		text := step.Name
		if step.Detail != "" {
			text += "   " + step.Detail
		}
		printf(c.stdout, "  %8s %8s  %s\n", seconds(step.At), took, text)
	}
}
