// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path"
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
// live line on a terminal; plain lines in a pipe.
func (c *common) voice() voice {
	const plain = 15 * time.Second // between two lines of a long change
	const live = time.Second
	const never = 0
	switch {
	case c.output == "json":
		return jsonVoice{c.stdout}
	case c.toJournal():
		v := newLogVoice(c)
		v.pulse = c.pulse
		v.begin(plain, never, v.progress)
		return v
	}

	c.silence.pause() // the voice speaks
	v := &textVoice{common: c, pulse: c.pulse, live: c.tty(c.stderr)}
	every := plain
	idle := plain
	if v.live {
		every = live
		idle = livePatience
	}
	v.begin(every, idle, v.progress)
	return v
}

// follower returns what receives the output of the programs that make changes, for a voice that
// shows it; nil for JSON, which has only events.
func (c *common) follower() commands.Follow {
	if c.output == "json" {
		return nil
	}
	return c.pulse.follow
}

type jsonVoice struct{ to io.Writer }

func (v jsonVoice) tell(e converge.Event) { _ = printJSON(v.to, e) }
func (v jsonVoice) close()                {}

// textVoice prints one line for each result. On a terminal the last line is live: it shows the
// current change until it is made.
type textVoice struct {
	*common
	*pulse
	live     bool
	shown    bool             // the live line is on the screen
	deferred []converge.Event // not printed yet: those that wait for the same event share a line
}

func (v *textVoice) tell(e converge.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.saw(e)
	v.wipe()

	isDeferred := e.What == converge.Deferred || e.What == converge.Unread
	n := len(v.deferred)
	if n > 0 && (!isDeferred || e.Stage != v.deferred[n-1].Stage) {
		v.flush()
	}
	if isDeferred {
		v.deferred = append(v.deferred, e)
		return
	}
	isProgress := e.What == converge.Making || e.What == converge.Waiting
	if v.live && isProgress {
		v.progress(e.Stage, cmp.Or(v.change(), e.Text), "", "")
		return
	}
	v.line(v.stderr, e)
}

// progress shows the current change: on a terminal in the live line, whose times are never cut,
// else in a line of its own.
func (v *textVoice) progress(stage, change, took, says string) {
	if v.quiet {
		return
	}

	const before = 23 // columns: the stage, the blanks around the times, and a cut last word
	width := v.width(v.stderr)
	change = v.inOneLine(change)
	says = v.inOneLine(says)

	if v.live && took != "" {
		change = clip(change, width-before-len(took))
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

// inOneLine is a text as it is printed, before it is clipped: escapes make it longer, and a tab is
// wider than a letter.
func (v *textVoice) inOneLine(text string) string {
	return strings.ReplaceAll(safe(v.stderr, text), "\t", " ")
}

// flush prints the deferred changes of a stage.
func (v *textVoice) flush() {
	var changes []converge.Line
	for _, e := range v.deferred {
		changes = append(changes, *e.Line)
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
	v.end()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.making = nil
	v.idle = 0 // a last beat may come now
	v.wipe()
	v.flush()
	v.silence.resume()
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

	const row = "  %-10s %s %s\n"
	switch e.What {
	case converge.Began:
		text := began(e)
		if text != "" {
			printf(w, "%s\n", text)
		}
	case converge.AllConverged:
		if c.verbose {
			printf(w, "  %-10s =\n", e.Stage)
		}
	case converge.Waiting:
		printf(w, row, e.Stage, "…", e.Text)
	case converge.Made, converge.Deferred, converge.Unread:
		printf(w, row, e.Stage, c.colour(w, sign(*e.Line)), summary(e))
	case converge.Undone, converge.RolledBack:
		text := e.Line.String() + "   " + string(e.What)
		if e.Line.Follows {
			text = summary(e)
		}
		printf(w, row, e.Stage, c.colour(w, sign(*e.Line)), text)
	case converge.Kept:
		stays(w, e.Stage, *e.Line, "stays", e.Text)
	case converge.Left:
		stays(w, e.Stage, *e.Line, "left", e.Text)
	case converge.Failed:
		printf(w, row, e.Stage, "!", "failed")
	case converge.Remains, converge.Unkept, converge.Healed:
		printf(w, row, e.Stage, "!", e.Text)
	}
}

// began says which run continues, or what an undo reverts; "" for a new apply.
func began(e converge.Event) string {
	undoes := len(e.Undoes) > 0
	continues := e.Text != ""
	count := trouble.Count(e.Count, "change")
	switch {
	case undoes && continues:
		return fmt.Sprintf("Continuing the undo of %s: %s.", runsOf(e.Undoes), count)
	case undoes:
		return fmt.Sprintf("Undoing %s: %s.", runsOf(e.Undoes), count)
	case continues:
		return fmt.Sprintf("Continuing run %s.", e.Run)
	}

	return ""
}

// summary returns a change in one line: its name, and its states or the event to which it is
// deferred.
func summary(e converge.Event) string {
	name := e.Line.String()
	isLong := len(e.Line.After) > 40
	switch {
	case e.Line.Unknown != "":
		return name + "   unknown"
	case e.Line.Deferred != "":
		return name + "   " + until(e.Line.Deferred)
	case e.Line.Diff == "" && isLong && e.Line.Why != "":
		return name + "   " + e.Line.Why
	case e.Line.Diff != "" || isLong:
		return name
	}

	return name + "   " + states(*e.Line)
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
	hook := journalHook{typed: func(text string) string { return commandsOf(c.stderr, text) }}
	if c.unit != nil {
		hook.unit = c.unit()
	}
	if hook.unit == "" && c.booting {
		hook.unit = stages.BootUnit
	}

	log := logrus.New()
	log.SetOutput(io.Discard)
	log.AddHook(hook)
	if c.quiet {
		log.SetLevel(logrus.WarnLevel)
	}
	return logVoice{log: log, waited: map[string]time.Time{}}
}

// progress logs the current change.
func (v logVoice) progress(stage, change, took, says string) {
	v.log.Info(strings.TrimRight(fmt.Sprintf("%s: %s   %s   %s", stage, change, took, says), " "))
}

func (v logVoice) tell(e converge.Event) {
	if v.pulse != nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.saw(e)
	}

	if v.repeats(e) {
		return
	}

	fields := logrus.Fields{"RUN": e.Run, "STAGE": e.Stage, "WHAT": string(e.What)}
	text := e.Text
	if e.Line != nil {
		fields["THING"] = e.Line.String()
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

// repeats says whether an event reports a wait that was logged already: of a stage a short time
// ago, of a change at any time.
func (v logVoice) repeats(e converge.Event) bool {
	switch {
	case e.What == converge.Waiting:
		if e.Time.Sub(v.waited[e.Stage]) < waitingEvery {
			return true
		}
		v.waited[e.Stage] = e.Time
	case e.What == converge.Deferred && e.Line.Waits != "", e.What == converge.Unread:
		why := cmp.Or(e.Line.Waits, e.Line.Unknown)
		_, logged := v.waited[why]
		if logged {
			return true
		}
		v.waited[why] = e.Time
	}
	return false
}

func (v logVoice) close() { v.end() }

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
	e.Message = h.typed(e.Message)
	message, fields := entry(e)
	fields["MESSAGE_ID"] = runEvent
	fields["SYSLOG_IDENTIFIER"] = "gpuadm"
	if h.unit != "" {
		fields["OBJECT_SYSTEMD_UNIT"] = h.unit
	}
	return journal.Send(message, priorityOf(e.Level), fields)
}

// priorityOf is a level as the journal has it.
func priorityOf(level logrus.Level) journal.Priority {
	switch level {
	case logrus.DebugLevel:
		return journal.PriDebug
	case logrus.InfoLevel:
		return journal.PriInfo
	case logrus.WarnLevel:
		return journal.PriWarning
	}
	return journal.PriErr
}

// entry returns an entry's message and fields, escaped like text.
func entry(e *logrus.Entry) (message string, fields map[string]string) {
	fields = map[string]string{}
	for name, value := range e.Data {
		text := printable(fmt.Sprint(value))
		if text != "" {
			fields[name] = strings.ReplaceAll(text, glue, " ")
		}
	}

	return strings.ReplaceAll(printable(e.Message), glue, " "), fields
}

// ownUnit returns the systemd service in which this process runs; "" for none. Source: cgroups(7),
// /proc/[pid]/cgroup, and systemd's src/basic/cgroup-util.c (cg_pid_get_unit): the service is the
// last part of the path.
func ownUnit() string {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	return unitOfCgroup(string(data))
}

func unitOfCgroup(lines string) (unit string) {
	for line := range strings.Lines(lines) {
		last := path.Base(strings.TrimSpace(line))
		if path.Ext(last) == ".service" {
			unit = last
		}
	}
	return unit
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
