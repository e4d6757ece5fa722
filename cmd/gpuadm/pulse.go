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
// program begins another phase. It is there before the machine is opened, which hands it to the
// programs; a voice begins it.
type pulse struct {
	end   func()           // it reports no more
	clock func() time.Time // of a test; nil is the process's own, which is not a simulated machine's

	mu     sync.Mutex
	every  time.Duration                          // between two lines
	show   func(stage, change, took, says string) // called with mu held
	stage  string                                 // of the changes
	making []converge.Line                        // that are made or waited for
	since  time.Time                              // when the changes began
	told   time.Time                              // when the last line was shown
	usual  time.Duration                          // that such a change took; 0 if none is known
	done   string                                 // how much the program has done: commands.Follow
	says   string                                 // the program's last line
	idle   time.Duration                          // without a change, until it says so; 0: never
	heard  time.Time                              // when the last event came, or the pulse began
	looked time.Time                              // when it last said so since then
}

// begin shows a line after each time of every, and after idle where nothing is heard, until end is
// called.
func (p *pulse) begin(every, idle time.Duration, show func(stage, change, took, says string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.every = every
	p.idle = idle
	p.show = show
	p.making = nil
	p.usual = 0
	p.done = ""
	p.says = ""
	p.heard = p.now()
	p.end = everyBeat(p.beat)
}

func (p *pulse) now() time.Time {
	if p.clock != nil {
		return p.clock()
	}
	return time.Now()
}

// saw receives an event of the run. The caller holds mu.
func (p *pulse) saw(e converge.Event) {
	p.heard = p.now()
	p.looked = time.Time{}
	if e.What == converge.Waiting && len(p.making) > 0 {
		p.done = ""
		p.says = e.Text
		return
	}

	if e.What != converge.Making || p.stage != e.Stage {
		p.making = nil
		p.usual = 0
		p.done = ""
		p.says = ""
	}

	if e.What != converge.Making {
		return
	}

	if len(p.making) == 0 {
		p.stage = e.Stage
		p.since = p.heard
		p.told = p.heard
	}

	p.making = append(p.making, *e.Line)
	usual := time.Duration(e.Usual) * time.Millisecond
	p.usual = max(p.usual, usual.Round(time.Second))
}

// change names what is made: up to three things, or how many.
func (p *pulse) change() string {
	return strings.ReplaceAll(several(p.making), glue, " ")
}

// follow receives a line that a program prints, and how much it has done. The first line of another
// phase is shown at once.
func (p *pulse) follow(done, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	phase := firstWord(done)
	if phase != "" && phase != firstWord(p.done) {
		p.told = p.told.Add(-p.every)
	}
	p.done = done
	p.says = line
}

// beat shows the change, if the last line is old enough.
func (p *pulse) beat(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.making) == 0 {
		p.looks(now)
		return
	}
	if now.Sub(p.told) < p.every {
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

// looks says that gpuadm looks at the machine, where nothing has been heard for a time: apt may
// need seconds to say what an installation brings.
func (p *pulse) looks(now time.Time) {
	isQuiet := p.idle > 0 && now.Sub(p.heard) >= p.idle && now.Sub(p.looked) >= p.every
	if !isQuiet {
		return
	}
	p.looked = now
	p.show(p.stage, "looks at the machine", now.Sub(p.heard).Round(time.Second).String(), "")
}

// clip cuts a text to a terminal's width: a live line that wraps cannot be erased.
func clip(text string, width int) string {
	runes := []rune(text)
	if width <= 1 || len(runes) < width {
		return text
	}
	return strings.TrimRight(string(runes[:width-2]), " ") + "…"
}
