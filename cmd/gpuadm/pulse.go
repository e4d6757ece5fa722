// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// A pulse reports, during a long change or one of many things, what it is, how much of it is done,
// its duration so far and that of an earlier run, and the last line of the program that makes it:
// apt's "Setting up nvidia-dkms-580-open", DKMS's "Building module(s)". It does so at once when the
// program begins another phase.
type pulse struct {
	mu          sync.Mutex
	every       time.Duration     // between two lines
	stage       string            // of the changes
	making      []converge.Change // that are made or waited for
	since, told time.Time
	usual       time.Duration                          // that such a change took; 0 if none is known
	done, says  string                                 // of the program: commands.Follow
	show        func(stage, change, took, says string) // called with mu held
	over        chan struct{}
}

func newPulse(every time.Duration, show func(stage, change, took, says string)) *pulse {
	p := &pulse{every: every, show: show, over: make(chan struct{})}
	go func() {
		clock := time.NewTicker(time.Second)
		defer clock.Stop()
		for {
			select {
			case now := <-clock.C:
				p.beat(now)
			case <-p.over:
				return
			}
		}
	}()
	return p
}

// saw receives an event of the run. The caller holds mu.
func (p *pulse) saw(e converge.Event) {
	switch {
	case e.What == converge.Waiting && len(p.making) > 0:
		p.done, p.says = "", e.Text
		return
	case e.What != converge.Making || p.stage != e.Stage:
		p.making, p.done, p.says, p.usual = nil, "", "", 0
	}
	if e.What == converge.Making {
		if len(p.making) == 0 {
			p.stage, p.since, p.told = e.Stage, e.Time, e.Time
		}
		p.making = append(p.making, *e.Change)
		p.usual = max(p.usual, (time.Duration(e.Usual) * time.Millisecond).Round(time.Second))
	}
}

// change names what is made: up to three things, or how many.
func (p *pulse) change() string { return strings.ReplaceAll(several(p.making), glue, " ") }

// follow receives a line that a program prints, and how much it has done.
func (p *pulse) follow(done, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, _, _ := strings.Cut(p.done, " ")
	if phase, _, _ := strings.Cut(done, " "); phase != "" && phase != before {
		p.told = p.told.Add(-p.every)
	}
	p.done, p.says = done, line
}

func (p *pulse) beat(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.making) == 0 || now.Sub(p.told) < p.every {
		return
	}
	p.told = now
	took := now.Sub(p.since).Round(time.Second).String()
	if p.usual > 0 {
		took += " of usually " + p.usual.String()
	}
	if p.done != "" {
		took = p.done + ", " + took
	}
	p.show(p.stage, p.change(), took, p.says)
}

// clip cuts a text to a terminal's width: a live line that wraps cannot be erased.
func clip(text string, width int) string {
	if r := []rune(text); width > 1 && len(r) >= width {
		return strings.TrimRight(string(r[:width-2]), " ") + "…"
	}
	return text
}
