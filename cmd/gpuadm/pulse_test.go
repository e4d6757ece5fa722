// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// long is a run with a change that took three minutes before, and with a batch of one of Ubuntu's
// longest names and others. The pulse goes by the test's clock; the real one, by which it also beats,
// is a century behind.
func long(v *textVoice) {
	v.mu.Lock()
	v.idle = 0 // TestLooks
	v.mu.Unlock()
	at := func(seconds int) time.Time {
		return time.Date(2126, 11, 26, 9, 0, seconds, 0, time.UTC)
	}
	now := at(0)
	v.mu.Lock()
	v.clock = func() time.Time { return now }
	v.mu.Unlock()
	tell := func(second int, what converge.What, usual time.Duration, kind, name string) {
		c := converge.Line{Change: converge.Change{
			Ref:   converge.Ref{Kind: kind, Name: name},
			After: "580",
		}}
		now = at(second)
		v.tell(converge.Event{
			Time:  now,
			What:  what,
			Stage: "modules",
			Line:  &c,
			Usual: usual.Milliseconds(),
		})
	}

	said := func(second int, done, line string) {
		v.follow(done, line)
		v.beat(at(second))
	}

	tell(1, converge.Making, 3*time.Minute, "package", "linux-modules-nvidia-580-server-open-6.8.0-1021-nvidia-64k")
	v.beat(at(2))
	said(5, "download 9%", "Retrieving file 3 of 34")
	said(6, "download 10%", "Retrieving file 4 of 34")
	said(16, "dpkg 57%", "Building module(s)....")
	v.beat(at(20))
	said(131, "dpkg 96%", "Setting up linux-modules-nvidia-580-server-open-6.8.0-1021-nvidia-64k")
	tell(132, converge.Made, 0, "package", "linux-modules-nvidia-580-server-open-6.8.0-1021-nvidia-64k")
	said(200, "", "a late line") // between two changes
	for _, name := range []string{"a", "b", "c", "d"} {
		tell(201, converge.Making, 0, "package", name)
	}
	now = at(210)
	v.tell(converge.Event{
		Time:  now,
		What:  converge.Waiting,
		Stage: "modules",
		Text:  "process 4711 (apt-get) holds the lock",
	})
	v.beat(at(216))
	tell(217, converge.Made, 0, "package", "a")
	v.close()
}

// voiceOn is the voice of a run that writes to w.
func voiceOn(w io.Writer) *textVoice {
	noVariable := func(string) string { return "" }
	c := &common{pulse: new(pulse), env: env{
		stdout: w,
		stderr: w,
		getenv: noVariable,
	}}
	return c.voice().(*textVoice)
}

// TestPulse: a change that takes long is shown with what is done of it, its time, the time that it
// usually takes and what its program printed last: in a pipe a line at the begin of each phase,
// every 15 seconds and at its end, on a terminal one live line, which never wraps and never loses
// its times.
func TestPulse(t *testing.T) {
	var piped strings.Builder
	long(voiceOn(&piped))
	const name = "package linux-modules-nvidia-580-server-open-6.8.0-1021-nvidia-64k"
	check.List(t, strings.Split(strings.TrimSpace(piped.String()), "\n"), []string{
		"modules    … " + name + "   download 9%, 4s of usually 3m0s   Retrieving file 3 of 34",
		"  modules    … " + name + "   dpkg 57%, 15s of usually 3m0s   Building module(s)....",
		"  modules    … " + name + "   dpkg 96%, 2m10s of usually 3m0s   Setting up linux-modules-nvidia-580-server-open-6.8.0-1021-nvidia-64k",
		"  modules    + " + name + "   absent → 580",
		"  modules    … process 4711 (apt-get) holds the lock",
		"  modules    … 4 packages   15s   process 4711 (apt-get) holds the lock",
		"  modules    + package a   absent → 580",
	}, "in a pipe")

	screen, close := atTerminal(t, 80)
	long(voiceOn(screen))
	var live []string
	for line := range strings.SplitSeq(strings.TrimSpace(painted.ReplaceAllString(close(), "")), "\n") {
		check.That(t, utf8.RuneCountInString(line) < 80 || strings.Contains(line, "+"), "the terminal wraps %q", line)
		live = append(live, line)
	}

	for _, want := range []string{"   1s of usually 3m0s\n", "   download 10%, 5s of usually 3m0s   R…", "   dpkg 57%, 15s of usually 3m0s   B…", "   dpkg 96%, 2m10s of usually 3m0s   S…", "  modules    … 4 packages", "  modules    … 4 packages   15s   process 4711 (apt-get) holds the lock"} {
		check.Has(t, strings.Join(live, "\n"), want, "the live line was never")
	}
}

// TestUsualTime: only a run that succeeded says how long a change usually takes.
func TestUsualTime(t *testing.T) {
	n := recordedNode(t, "ubuntu24-h100")
	usual := func(args ...string) bool {
		_, out := onHostWith(t, n, "format = 1\n[runtime]\n", append(args, "-o", "json")...)
		must.That(t, strings.Contains(out, `"changed":`) && !strings.Contains(out, `"changed":0`), "%v: nothing was changed: %s", args, out)
		return strings.Contains(out, `"usual_ms":`)
	}

	check.That(t, !usual("apply", "-f", "-"), "the first apply knows a time")
	usual("undo", "--to", "all")
	check.That(t, usual("apply", "-f", "-"), "the second apply does not know the time of the first")
}

// TestLooks: where nothing is heard for two seconds a terminal says that gpuadm looks at the machine,
// and the line goes with the next one; a pipe says so after a quarter of a minute.
func TestLooks(t *testing.T) {
	var piped strings.Builder
	v := voiceOn(&piped)
	began := v.heard
	v.beat(began.Add(14 * time.Second))
	check.Equal(t, piped.String(), "", "after 14 seconds a pipe has")
	v.beat(began.Add(15 * time.Second))
	v.beat(began.Add(16 * time.Second))
	check.Equal(t, piped.String(), "             … looks at the machine   15s\n", "after 16 seconds:")
	v.close()
	v.beat(began.Add(time.Hour)) // the clock's last tick comes with the end
	check.Has(t, piped.String(), "15s\n", "a pipe has")
	check.That(t, !strings.Contains(piped.String(), "1h0m0s"), "after the end: %s", &piped)

	screen, shown := atTerminal(t, 80)
	v = voiceOn(screen)
	began = v.heard
	v.beat(began.Add(time.Second))
	v.beat(began.Add(2 * time.Second))
	v.beat(began.Add(3 * time.Second))
	v.close()
	check.Equal(t, shown(), "             … looks at the machine   2s\n\x1b[2K"+
		"             … looks at the machine   3s\n\x1b[2K", "a terminal shows")
}

// TestPulseOfASimulation: a machine whose clock is days behind, as the demo's is, does not make a
// change look days long.
func TestPulseOfASimulation(t *testing.T) {
	var shown string
	p := new(pulse)
	p.begin(time.Hour, 0, func(_, _, took, _ string) { shown = took })
	defer p.end()
	p.saw(converge.Event{
		What:  converge.Making,
		Stage: "packages",
		Time:  time.Now().Add(-200 * time.Hour),
		Line:  &converge.Line{},
	})

	p.beat(time.Now())
	check.Equal(t, shown, "", "at once it says")
	p.beat(time.Now().Add(time.Hour))
	check.Equal(t, shown, "1h0m0s", "after an hour it says")
}

// TestLiveLineIsOneLine: what a program prints does not make the live line longer than the terminal
// is wide: gpuadm could not erase it.
func TestLiveLineIsOneLine(t *testing.T) {
	screen, shown := atTerminal(t, 80)
	v := voiceOn(screen)
	now := v.heard
	v.tell(converge.Event{
		What:  converge.Making,
		Stage: "packages",
		Line: &converge.Line{Change: converge.Change{Ref: converge.Ref{
			Kind: "package",
			Name: "a",
		}}},
	})
	for _, says := range []string{"a\tb\tc\td", strings.Repeat("\x1b[1mword\x1b[0m ", 4)} {
		now = now.Add(time.Minute)
		v.follow("", says)
		v.beat(now)
	}
	v.close()

	for line := range strings.Lines(painted.ReplaceAllString(shown(), "")) {
		isOne := utf8.RuneCountInString(line) <= 80 && !strings.Contains(line, "\t")
		check.That(t, isOne && (strings.Contains(line, "…") || line == "\n"), "a live line: %q", line)
	}
}
