// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// A voice reports the events of a run while it works.
type voice interface {
	tell(converge.Event)
	close()
}

// voice chooses: one JSON object a line on stdout; the journal's fields under systemd; a live line on a terminal;
// plain lines in a pipe.
func (c *common) voice() voice {
	switch {
	case c.output == "json":
		return jsonVoice{c.stdout}
	case c.toJournal():
		return newLogVoice(c)
	case c.tty(c.stderr):
		return &liveVoice{common: c}
	}
	return plainVoice{c}
}

type jsonVoice struct{ to io.Writer }

func (v jsonVoice) tell(e converge.Event) { _ = printJSON(v.to, e) }
func (v jsonVoice) close()                {}

// plainVoice prints one line for what was done, none for what is about to be.
type plainVoice struct{ *common }

func (v plainVoice) tell(e converge.Event) { v.line(v.stderr, e) }
func (v plainVoice) close()                {}

// liveVoice shows on a terminal's last line what is being made, and replaces it with what was made.
type liveVoice struct {
	*common
	live bool
}

func (v *liveVoice) tell(e converge.Event) {
	v.close()
	if e.What == converge.Making || e.What == converge.Waiting {
		if v.quiet {
			return
		}
		text := e.Text
		if e.Change != nil {
			text = e.Change.String()
		}
		printf(v.stderr, "  %-10s … %s", e.Stage, text)
		v.live = true
		return
	}
	v.line(v.stderr, e)
}

// close wipes the live line.
func (v *liveVoice) close() {
	if v.live {
		printf(v.stderr, "\r\x1b[2K")
		v.live = false
	}
}

// line prints what an event has to say to a person, if anything. Errors are printed once, at the end.
func (c *common) line(w io.Writer, e converge.Event) {
	if e.What == converge.Damaged {
		printf(w, "gpuadm: %s\n", e.Text)
	}
	if c.quiet {
		return
	}
	switch e.What {
	case converge.Began:
		if e.Text != "" {
			printf(w, "Continuing run %s.\n", e.Run)
		}
	case converge.AllConverged:
		if c.verbose {
			printf(w, "  %-10s =\n", e.Stage)
		}
	case converge.Waiting:
		printf(w, "  %-10s … %s\n", e.Stage, e.Text)
	case converge.Made, converge.Deferred:
		printf(w, "  %-10s %s %s\n", e.Stage, c.colour(w, sign(*e.Change)), summary(e))
	case converge.Undone, converge.RolledBack:
		text := e.Change.String() + "   " + string(e.What)
		if e.Change.Settles {
			text = summary(e)
		}
		printf(w, "  %-10s %s %s\n", e.Stage, c.colour(w, sign(*e.Change)), text)
	case converge.Kept:
		printf(w, "  %-10s = %s   stays: %s\n", e.Stage, e.Change.String(), e.Text)
	case converge.Left:
		printf(w, "  %-10s = %s   left: %s\n", e.Stage, e.Change.String(), e.Text)
	case converge.Failed:
		printf(w, "  %-10s ! failed\n", e.Stage)
	case converge.Remains, converge.Unkept, converge.Healed:
		printf(w, "  %-10s ! %s\n", e.Stage, e.Text)
	}
}

// summary is a change in one line: its name, and its states or the event that it is deferred until.
func summary(e converge.Event) string {
	switch {
	case e.Change.Deferred != "":
		return e.Change.String() + "   " + until(e.Change.Deferred)
	case e.Change.Diff == "" && len(e.Change.After) > 40 && e.Change.Why != "":
		return e.Change.String() + "   " + e.Change.Why
	case e.Change.Diff != "" || len(e.Change.After) > 40:
		return e.Change.String()
	}
	return e.Change.String() + "   " + states(*e.Change)
}
