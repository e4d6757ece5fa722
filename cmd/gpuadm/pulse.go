// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// A pulse reports, during a long change, its name, its duration so far, and the last line of the program that makes it:
// apt's "Setting up nvidia-dkms-580-open", DKMS's "Building module(s)".
type pulse struct {
	mu          sync.Mutex
	every       time.Duration // between two lines
	stage, text string        // the change that is made or waited for; "" for none
	since, told time.Time
	usual       time.Duration // that one like it took; 0 if none is known
	says        string
	show        func(stage, text string) // called with mu held
	over        chan struct{}
}

func newPulse(every time.Duration, show func(stage, text string)) *pulse {
	p := &pulse{every: every, show: show, over: make(chan struct{})}
	go func() {
		clock := time.NewTicker(every)
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
func (p *pulse) saw(e converge.Event, now time.Time) {
	if e.What == converge.Waiting && p.text != "" {
		p.says = e.Text
		return
	}
	p.text, p.says = "", ""
	if e.What == converge.Making {
		p.stage, p.text, p.since, p.told = e.Stage, e.Change.String(), now, now
		p.usual = (time.Duration(e.Usual) * time.Millisecond).Round(time.Second)
	}
}

// follow receives a line that a program prints.
func (p *pulse) follow(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.says = line
}

func (p *pulse) beat(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.text == "" || now.Sub(p.told) < p.every {
		return
	}
	p.told = now
	text := fmt.Sprintf("%s   %s", p.text, now.Sub(p.since).Round(time.Second))
	if p.usual > 0 {
		text += fmt.Sprintf(" of usually %s", p.usual)
	}
	if p.says != "" {
		text += "   " + p.says
	}
	p.show(p.stage, text)
}

// clip cuts a text to a terminal's width: a live line that wraps cannot be erased.
func clip(text string, width int) string {
	if r := []rune(text); width > 1 && len(r) >= width {
		return strings.TrimRight(string(r[:width-2]), " ") + "…"
	}
	return text
}
