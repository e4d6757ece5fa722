// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// A silence says on standard error that gpuadm works, where a verb prints nothing for a time: on a
// terminal in a live line, which the next output replaces; in a pipe in a line of its own. A voice,
// which reports on a run, and a question to the operator pause it.
type silence struct {
	to       io.Writer     // standard error itself
	width    func() int    // of the terminal
	live     bool          // it is a terminal
	patience time.Duration // after which it says so
	every    time.Duration // between two lines
	doing    string        // what gpuadm does

	mu     sync.Mutex
	since  time.Time // the last output
	told   time.Time // when it last said so
	shown  bool      // the live line is on the screen
	paused int
}

const (
	livePatience = 1500 * time.Millisecond // with a beat it is less than two seconds
	pipePatience = 15 * time.Second
	looksHere    = "looks at the machine"
)

// endSilence has each verb for operators say that it works. Verbs that units and programs run have
// the journal, and -o json is for programs.
func (c *common) endSilence(cmd *cobra.Command) {
	run := cmd.RunE
	if run != nil && !cmd.Hidden {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if c.isTyped(append(c.files, args...)) {
				return run(cmd, args)
			}
			done := c.silence.begin(c)
			defer done()
			return run(cmd, args)
		}
	}

	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			c.endSilence(sub)
		}
	}
}

// isTyped says whether the operator types one of the files at the terminal.
func (e env) isTyped(files []string) bool {
	in, ok := e.stdin.(*os.File)
	return ok && slices.Contains(files, "-") && term.IsTerminal(int(in.Fd()))
}

// begin watches until done is called.
func (s *silence) begin(c *common) (done func()) {
	if !c.impatient || c.quiet || c.output == "json" || c.toJournal() {
		return func() {}
	}

	terminal := c.env // a copy: a verb may change its own while the line is written
	stderr := c.stderr

	s.mu.Lock()
	s.width = func() int { return terminal.width(stderr) }
	s.live = c.tty(c.stderr)
	s.patience = pipePatience
	s.every = pipePatience
	if s.live {
		s.patience = livePatience
		s.every = time.Second
	}
	s.since = time.Now()
	s.mu.Unlock()

	end := everyBeat(s.beat)
	return func() {
		end()
		s.pause()
	}
}

// beat says that gpuadm works, if it is time.
func (s *silence) beat(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isTime := now.Sub(s.since) >= s.patience && now.Sub(s.told) >= s.every
	if s.paused > 0 || !isTime {
		return
	}

	s.told = now
	took := now.Sub(s.since).Round(time.Second)
	line := fmt.Sprintf("  %-10s … %s   %s", "", s.doing, took)
	if !s.live {
		printf(s.to, "%s\n", line)
		return
	}
	s.wipe()
	printf(s.to, "%s", clip(line, s.width()))
	s.shown = true
}

// wipe erases the live line. The caller holds mu.
func (s *silence) wipe() {
	if s.shown {
		printf(s.to, "\r\x1b[2K")
		s.shown = false
	}
}

// pause has it say nothing until resume is called as often.
func (s *silence) pause() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused++
	s.wipe()
}

func (s *silence) resume() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused--
	s.since = time.Now()
}

// does says what gpuadm does, where it does not look at this machine.
func (s *silence) does(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doing = strings.ReplaceAll(printable(what), glue, " ")
}

// spoken is a stream whose output ends a silence.
type spoken struct {
	io.Writer
	silence *silence
}

func (h spoken) Write(text []byte) (int, error) {
	h.silence.mu.Lock()
	defer h.silence.mu.Unlock()
	h.silence.wipe()
	h.silence.since = time.Now()
	return h.Writer.Write(text)
}
