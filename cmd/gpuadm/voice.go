// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/sirupsen/logrus"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
)

// A voice reports the events of a run while it works.
type voice interface {
	tell(converge.Event)
	close()
}

// voice chooses the form: one JSON object a line on stdout; the journal's fields under systemd; a
// live line on a terminal; plain lines in a pipe. The returned context also passes it the output of
// the programs that make changes.
func (c *common) voice(ctx context.Context) (voice, context.Context) {
	const plain = 15 * time.Second // between two lines of a long change
	switch {
	case c.output == "json":
		return jsonVoice{c.stdout}, ctx
	case c.toJournal():
		v := newLogVoice(c)
		v.pulse = newPulse(plain, func(stage, change, took, says string) {
			v.log.Info(strings.TrimRight(fmt.Sprintf("%s: %s   %s   %s", stage, change, took, says), " "))
		})
		return v, commands.Follow(ctx, v.pulse.follow)
	}
	v := &textVoice{common: c, live: c.tty(c.stderr)}
	v.pulse = newPulse(map[bool]time.Duration{true: time.Second, false: plain}[v.live], v.goesOn)
	return v, commands.Follow(ctx, v.pulse.follow)
}

type jsonVoice struct{ to io.Writer }

func (v jsonVoice) tell(e converge.Event) { _ = printJSON(v.to, e) }
func (v jsonVoice) close()                {}

// textVoice prints one line for each result. On a terminal the last line is live: it shows the
// current change until it is made.
type textVoice struct {
	*common
	*pulse
	live, shown bool
	deferred    []converge.Event // not printed yet: those that wait for the same event share a line
}

func (v *textVoice) tell(e converge.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.saw(e)
	v.wipe()
	if n := len(v.deferred); n > 0 && (e.What != converge.Deferred || e.Stage != v.deferred[n-1].Stage) {
		v.flush()
	}
	if e.What == converge.Deferred {
		v.deferred = append(v.deferred, e)
		return
	}
	if v.live && (e.What == converge.Making || e.What == converge.Waiting) {
		v.goesOn(e.Stage, cmp.Or(v.change(), e.Text), "", "")
		return
	}
	v.line(v.stderr, e)
}

// goesOn shows the current change: on a terminal in the live line, of which the times are never
// cut, else in a line of its own.
func (v *textVoice) goesOn(stage, change, took, says string) {
	if v.quiet {
		return
	}
	width := v.width(v.stderr)
	if v.live && took != "" { // 23 columns for what is before the change, the blanks around the times and a cut last word
		change = clip(change, width-23-len(took))
	}
	line := strings.TrimRight(fmt.Sprintf("  %-10s … %s   %s   %s", stage, change, took, says), " ")
	if !v.live {
		printf(v.stderr, "%s\n", line)
		return
	}
	v.wipe()
	printf(v.stderr, "%s", clip(line, width))
	v.shown = true
}

// flush prints the deferred changes of a stage.
func (v *textVoice) flush() {
	var changes []converge.Change
	for _, e := range v.deferred {
		changes = append(changes, *e.Change)
		if len(v.deferred) <= 3 {
			v.line(v.stderr, e)
		}
	}
	if len(changes) > 3 && !v.quiet {
		v.stageLine(v.stderr, v.deferred[0].Stage, changes)
	}
	v.deferred = nil
}

func (v *textVoice) close() {
	close(v.over)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.making = nil
	v.wipe()
	v.flush()
}

// wipe erases the live line.
func (v *textVoice) wipe() {
	if v.shown {
		printf(v.stderr, "\r\x1b[2K")
		v.shown = false
	}
}

// line prints an event, if an operator needs it. Errors are printed once, at the end of the run.
func (c *common) line(w io.Writer, e converge.Event) {
	if e.What == converge.Damaged {
		printf(w, "gpuadm: %s\n", e.Text)
	}
	if c.quiet {
		return
	}
	switch e.What {
	case converge.Began:
		if len(e.Undoes) > 0 {
			verb := "Undoing"
			if e.Text != "" {
				verb = "Continuing the undo of"
			}
			printf(w, "%s %s: %s.\n", verb, runsOf(e.Undoes), trouble.Count(e.Count, "change"))
		} else if e.Text != "" {
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
		if e.Change.Follows {
			text = summary(e)
		}
		printf(w, "  %-10s %s %s\n", e.Stage, c.colour(w, sign(*e.Change)), text)
	case converge.Kept:
		stays(w, e.Stage, *e.Change, "stays", e.Text)
	case converge.Left:
		stays(w, e.Stage, *e.Change, "left", e.Text)
	case converge.Failed:
		printf(w, "  %-10s ! failed\n", e.Stage)
	case converge.Remains, converge.Unkept, converge.Healed:
		printf(w, "  %-10s ! %s\n", e.Stage, e.Text)
	}
}

// summary returns a change in one line: its name, and its states or the event to which it is
// deferred.
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

// runEvent is the journal's MESSAGE_ID of all events of gpuadm, for journalctl MESSAGE_ID=….
const runEvent = "5d0c3f6f2f0b4a6c9f0f3f5b7f4f9c21"

// logVoice sends events to the journal with native fields: STAGE=, THING=, RUN=, WHAT=, and MS=,
// how long a change took.
type logVoice struct {
	*pulse
	log    *logrus.Logger
	waited map[string]time.Time // when gpuadm last logged that a stage or a change waits
}

// waitingEvery is the shortest time between two logs of the same wait.
const waitingEvery = time.Minute

func newLogVoice(c *common) logVoice {
	log := logrus.New()
	log.SetOutput(io.Discard)
	hook := journalHook{}
	if c.booting {
		hook.unit = stages.BootUnit
	}
	hook.typed = func(text string) string { return commandsOf(c.stderr, text) }
	log.AddHook(hook)
	if c.quiet {
		log.SetLevel(logrus.WarnLevel)
	}
	return logVoice{log: log, waited: map[string]time.Time{}}
}

func (v logVoice) tell(e converge.Event) {
	if v.pulse != nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.saw(e)
	}
	if e.What == converge.Waiting {
		if e.Time.Sub(v.waited[e.Stage]) < waitingEvery {
			return
		}
		v.waited[e.Stage] = e.Time
	}
	if e.What == converge.Deferred && e.Change.Waits != "" {
		if _, said := v.waited[e.Change.Waits]; said {
			return
		}
		v.waited[e.Change.Waits] = e.Time
	}
	fields := logrus.Fields{"RUN": e.Run, "STAGE": e.Stage, "WHAT": string(e.What)}
	text := e.Text
	if e.Change != nil {
		fields["THING"] = e.Change.String()
		if e.Millis > 0 {
			fields["MS"] = e.Millis
		}
		text = strings.TrimSpace(summary(e) + "  " + e.Text)
	}
	if len(e.Took) > 0 {
		text += ": " + e.Took.String()
	}
	entry := v.log.WithFields(fields)
	switch e.What {
	case converge.Failed:
		entry.Errorf("%s failed: %s", e.Stage, text)
	case converge.Remains, converge.Unkept, converge.Healed, converge.Damaged:
		entry.Warn(text)
	case converge.Making, converge.AllConverged, converge.Nothing: // the answer reports these
		entry.Debugf("%s %s: %s", e.Stage, e.What, text)
	default:
		entry.Info(strings.TrimSpace(fmt.Sprintf("%s %s: %s", e.Stage, e.What, text)))
	}
}

func (v logVoice) close() { close(v.over) }

// answer prints an answer as text, under systemd to the journal.
func (c *common) answer(text string) {
	if c.toJournal() {
		v := newLogVoice(c)
		v.log.SetLevel(logrus.InfoLevel) // print it also with --quiet
		v.log.Info(text)
		return
	}
	printf(c.stdout, "%s\n", text)
}

// journalHook sends entries to systemd's journal with their unit: journald finds the unit by the
// process, and a run with nothing to do has often ended by then. journalctl -u accepts the field
// from root.
type journalHook struct {
	unit  string
	typed func(text string) string // replaces the commands in a text
}

func (journalHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h journalHook) Fire(e *logrus.Entry) error {
	priority := map[logrus.Level]journal.Priority{
		logrus.DebugLevel: journal.PriDebug,
		logrus.InfoLevel:  journal.PriInfo,
		logrus.WarnLevel:  journal.PriWarning,
		logrus.ErrorLevel: journal.PriErr,
	}[e.Level]
	e.Message = h.typed(e.Message)
	message, vars := entry(e)
	vars["MESSAGE_ID"], vars["SYSLOG_IDENTIFIER"] = runEvent, "gpuadm"
	if h.unit != "" {
		vars["OBJECT_SYSTEMD_UNIT"] = h.unit
	}
	return journal.Send(message, priority, vars)
}

// entry returns an entry's message and fields, escaped like text.
func entry(e *logrus.Entry) (message string, fields map[string]string) {
	fields = map[string]string{}
	for k, v := range e.Data {
		if s := printable(fmt.Sprint(v)); s != "" {
			fields[k] = strings.ReplaceAll(s, glue, " ")
		}
	}
	return strings.ReplaceAll(printable(e.Message), glue, " "), fields
}

// toJournal says whether stderr is the journal's own stream: systemd then sets JOURNAL_STREAM to
// its device and inode (systemd.exec(5)).
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
