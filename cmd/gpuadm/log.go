// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/stages"
)

// runEvent is the journal's MESSAGE_ID of all events of gpuadm: journalctl MESSAGE_ID=… finds them by it.
const runEvent = "5d0c3f6f2f0b4a6c9f0f3f5b7f4f9c21"

// logVoice hands events to the journal as native fields: STAGE=, THING=, RUN=, WHAT=, and MS=, how long a change took.
type logVoice struct {
	*common
	send   func(message string, priority journal.Priority, fields map[string]string) error
	waited map[string]time.Time // when each stage last logged that it waits
}

// waitingEvery keeps a stage that waits from filling the journal.
const waitingEvery = time.Minute

func newLogVoice(c *common) logVoice { return logVoice{c, journal.Send, map[string]time.Time{}} }

func (v logVoice) tell(e converge.Event) {
	if e.What == converge.Waiting {
		if e.Time.Sub(v.waited[e.Stage]) < waitingEvery {
			return
		}
		v.waited[e.Stage] = e.Time
	}
	fields := map[string]string{"RUN": e.Run, "STAGE": e.Stage, "WHAT": string(e.What)}
	text := e.Text
	if e.Change != nil {
		fields["THING"] = e.Change.String()
		if e.Millis > 0 {
			fields["MS"] = fmt.Sprint(e.Millis)
		}
		text = strings.TrimSpace(summary(e) + "  " + e.Text)
	}
	switch e.What {
	case converge.Failed:
		v.log(journal.PriErr, fmt.Sprintf("%s failed: %s", e.Stage, text), fields)
	case converge.Remains, converge.Unkept, converge.Healed, converge.Damaged:
		v.log(journal.PriWarning, text, fields)
	case converge.Making, converge.AllConverged, converge.Nothing: // the answer says that there was nothing to do
	default:
		if !v.quiet {
			v.log(journal.PriInfo, strings.TrimSpace(fmt.Sprintf("%s %s: %s", e.Stage, e.What, text)), fields)
		}
	}
}

func (v logVoice) close() {}

// log sends a line to systemd's journal, escaped like text. At boot it names the unit that it belongs to: journald finds that out by
// itself only while the process lives, which a run with nothing to do does not for long; journalctl -u takes root's word for it.
func (v logVoice) log(priority journal.Priority, text string, fields map[string]string) {
	all := map[string]string{"MESSAGE_ID": runEvent, "SYSLOG_IDENTIFIER": "gpuadm"}
	if v.booting {
		all["OBJECT_SYSTEMD_UNIT"] = stages.BootUnit
	}
	for k, value := range fields {
		if value != "" {
			all[k] = printable(value)
		}
	}
	_ = v.send(said(v.stderr, text), priority, all) // there is no other place to say that it fails
}

// answer prints an answer in words, under systemd to the journal, also with --quiet.
func (c *common) answer(text string) {
	if c.toJournal() {
		newLogVoice(c).log(journal.PriInfo, text, nil)
		return
	}
	printf(c.stdout, "%s\n", text)
}

// toJournal says whether stderr is the journal's own stream: systemd then sets JOURNAL_STREAM to its device and inode
// (systemd.exec(5)).
func (c *common) toJournal() bool {
	f, ok := file(c.stderr)
	stream := c.getenv("JOURNAL_STREAM")
	if !ok || stream == "" {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
