// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// A voice tells a run's events while it goes on.
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
		text := printable(e.Text)
		if e.Change != nil {
			text = thing(*e.Change)
		}
		fmt.Fprintf(v.stderr, "  %-10s … %s", e.Stage, text)
		v.live = true
		return
	}
	v.line(v.stderr, e)
}

// close wipes the live line.
func (v *liveVoice) close() {
	if v.live {
		fmt.Fprint(v.stderr, "\r\x1b[2K")
		v.live = false
	}
}

// line prints what an event has to say to a person, if anything. Errors are printed once, at the end.
func (c *common) line(w io.Writer, e converge.Event) {
	if e.What == converge.Damaged {
		fmt.Fprintf(w, "gpuadm: %s\n", printable(e.Text))
	}
	if c.quiet {
		return
	}
	switch e.What {
	case converge.Began:
		if e.Text != "" {
			fmt.Fprintf(w, "Going on with run %s.\n", e.Run)
		}
	case converge.Stands:
		if c.verbose {
			fmt.Fprintf(w, "  %-10s =\n", e.Stage)
		}
	case converge.Waiting:
		fmt.Fprintf(w, "  %-10s … %s\n", e.Stage, printable(e.Text))
	case converge.Made, converge.Waits:
		fmt.Fprintf(w, "  %-10s %s %s\n", e.Stage, c.colour(w, sign(*e.Change)), told(e))
	case converge.Undone:
		text := thing(*e.Change) + "   put back"
		if e.Change.Settles {
			text = told(e)
		}
		fmt.Fprintf(w, "  %-10s %s %s\n", e.Stage, c.colour(w, sign(*e.Change)), text)
	case converge.Kept:
		fmt.Fprintf(w, "  %-10s = %s   stays: %s\n", e.Stage, thing(*e.Change), printable(e.Text))
	case converge.Left:
		fmt.Fprintf(w, "  %-10s = %s   left: %s\n", e.Stage, thing(*e.Change), printable(e.Text))
	case converge.Failed:
		fmt.Fprintf(w, "  %-10s ! failed\n", e.Stage)
	case converge.Remains, converge.Unkept, converge.Healed:
		fmt.Fprintf(w, "  %-10s ! %s\n", e.Stage, printable(e.Text))
	}
}

// told is a change in one line: its name, and how it stands now or when it will.
func told(e converge.Event) string {
	switch {
	case e.Change.Later != "":
		return thing(*e.Change) + "   " + when(e.Change.Later)
	case e.Change.Diff != "" || len(e.Change.After) > 40:
		return thing(*e.Change)
	}
	return thing(*e.Change) + "   " + states(*e.Change)
}
