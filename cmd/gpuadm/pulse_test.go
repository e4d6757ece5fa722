// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestPulse: a change that takes long is said again and again, with its time and what its program printed last; nothing is said
// of a quick one, and nothing between two.
func TestPulse(t *testing.T) {
	var said []string
	p := &pulse{every: 15 * time.Second, show: func(stage, text string) { said = append(said, stage+" "+text) }}
	start := time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	dkms := converge.Change{Ref: converge.Ref{Kind: "dkms", Name: "nvidia/580.178.04"}}
	p.beat(at(0))
	p.saw(converge.Event{What: converge.Making, Stage: "modules", Change: &dkms}, at(1))
	p.beat(at(10))
	p.follow("Building module(s)....")
	p.beat(at(16))
	p.beat(at(20))
	p.saw(converge.Event{What: converge.Waiting, Stage: "modules", Text: "the initramfs is written"}, at(25))
	p.beat(at(31))
	p.saw(converge.Event{What: converge.Made, Stage: "modules", Change: &dkms}, at(33))
	p.follow("a late line")
	p.beat(at(60))
	check.List(t, said, []string{
		"modules dkms nvidia/580.178.04   15s   Building module(s)....",
		"modules dkms nvidia/580.178.04   30s   the initramfs is written",
	}, "said")
	check.Equal(t, clip("  packages   … nvidia-driver-580   1m10s   Setting up", 30), "  packages   … nvidia-driver…", "cut to a terminal:")
}
