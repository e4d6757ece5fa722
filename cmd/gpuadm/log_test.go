// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// heard keeps what is logged.
type heard struct{ lines *[]string }

func (heard) Levels() []logrus.Level { return logrus.AllLevels }

func (h heard) Fire(e *logrus.Entry) error {
	*h.lines = append(*h.lines, e.Message)
	return nil
}

// The journal gets a waiting event at once and then each minute, however many events come.
func TestJournalIsNotFlooded(t *testing.T) {
	var lines []string
	log := logrus.New()
	log.SetOutput(&strings.Builder{})
	log.AddHook(heard{&lines})
	v := logVoice{log: log, waited: map[string]time.Time{}}
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for i := range 25 { // as many events as in five minutes
		v.tell(converge.Event{
			Time:  at.Add(time.Duration(i) * 12 * time.Second),
			Stage: "packages",
			What:  converge.Waiting,
			Text:  "process 4711 (apt-get upgrade) holds it",
		})
	}

	v.tell(converge.Event{
		Time:  at.Add(290 * time.Second),
		Stage: "joined",
		What:  converge.Waiting,
		Text:  "for the node",
	})
	want := slices.Repeat([]string{"packages waiting: process 4711 (apt-get upgrade) holds it"}, 5)
	want = append(want, "joined waiting: for the node")
	check.That(t, slices.Equal(lines, want), "told %d times: %q", len(lines), lines)
}

// The journal has how long each change took, as a field.
func TestJournalHasTimes(t *testing.T) {
	fields := map[string]string{}
	log := logrus.New()
	log.SetOutput(&strings.Builder{})
	log.AddHook(kept{fields})
	logVoice{log: log}.tell(converge.Event{
		Stage: "modules",
		What:  converge.Made,
		Line: &converge.Line{Change: converge.Change{Ref: converge.Ref{
			Kind: "module",
			Name: "nvidia",
		}}},
		Millis: 2300,
	})
	check.That(t, fields["MS"] == "2300" && fields["STAGE"] == "modules", "%v", fields)
}

// kept keeps the fields of an entry.
type kept struct{ fields map[string]string }

func (kept) Levels() []logrus.Level { return logrus.AllLevels }

func (k kept) Fire(e *logrus.Entry) error {
	_, fields := entry(e)
	maps.Copy(k.fields, fields)
	return nil
}

// TestFold: lines are broken between words; what continues a line begins below its text; a word
// that is too long stays whole.
func TestFold(t *testing.T) {
	for _, test := range []struct {
		text  string
		width int
		want  string
	}{
		{"one two three", 0, "one two three"},
		{"one two three", 13, "one two three"},
		{"one two three\nfour", 12, "one two\nthree\nfour"},
		{"    one two three", 12, "    one two\n    three"},
		{"  because  one two three four", 24, "  because  one two three\n           four"},
		{"  driver     \x1b[32m+\x1b[0m package a, package b, package c", 34, "  driver     \x1b[32m+\x1b[0m package a, package\n               b, package c"},
		{"A reboot is needed", 12, "A reboot is\nneeded"},
		{"/etc/containerd/config.toml is new", 10, "/etc/containerd/config.toml\nis new"},
		{"To apply: sudo" + glue + "gpuadm" + glue + "apply", 20, "To apply:\nsudo" + glue + "gpuadm" + glue + "apply"},
		{"× × ×", 3, "× ×\n×"},
		{"", 10, ""},
	} {
		check.Equal(t, fold(test.text, test.width), test.want, "fold(%q, %d) =", test.text, test.width)
	}
}

// slow is a server that has not answered in the time that one request is given.
type slow struct{}

func (slow) Error() string { return "api.example does not answer in time" }
func (slow) Unwrap() error { return context.DeadlineExceeded }
func (slow) Waits() bool   { return true }

// TestWhoseTimeIsOver tells a server that does not answer in time, which may answer the next run,
// from a run whose own --deadline is over.
func TestWhoseTimeIsOver(t *testing.T) {
	for _, test := range []struct {
		err  error
		code int
		try  string
	}{
		{slow{}, exitAgain, "wait, and run the same command again"},
		{fmt.Errorf("cannot make node label a: %w", slow{}), exitAgain, "wait, and run the same command again"},
		{overdue{context.DeadlineExceeded}, exitCannot, "longer --deadline"},
		{overdue{slow{}}, exitCannot, "longer --deadline"},
		{overdue{&trouble.Error{What: "cannot make x", Err: slow{}}}, exitCannot, "longer --deadline"},
	} {
		var out strings.Builder
		e := env{
			stdout: &out,
			stderr: &out,
			getenv: func(string) string { return "" },
		}
		code := report(e, newApply(&common{env: e}), test.err)
		check.That(t, code == test.code && strings.Contains(out.String(), test.try), "%#v: exit code %d\n%s", test.err, code, out.String())
	}
}

// TestHelpExit holds the page on exit codes to the codes that there are, and each to what a script
// does with it.
func TestHelpExit(t *testing.T) {
	var out strings.Builder
	e := env{
		stdout: &out,
		stderr: &out,
		getenv: func(string) string { return "" },
	}
	code := run(context.Background(), e, []string{"help", "exit"})
	must.That(t, code == 0, "exit code %d\n%s", code, &out)
	var told []string
	for line := range strings.Lines(out.String()) {
		check.That(t, len(line) <= 81, "%d characters: %s", len(line)-1, line)
		if m := regexp.MustCompile(`^  (\d+) +[A-Z]`).FindStringSubmatch(line); m != nil {
			told = append(told, m[1])
		}
	}

	want := fmt.Sprint([]int{0, exitCannot, exitUsage, exitPending, exitReboot, exitAgain})
	check.That(t, fmt.Sprint(told) == want, "it tells of %v, want %s", told, want)
	out.Reset()
	if run(context.Background(), e, []string{"help"}); !strings.Contains(out.String(), "gpuadm help exit") {
		t.Errorf("help does not name it:\n%s", &out)
	}
}

// TestUnitOfCgroup: journald is told the unit of a process that has ended before journald looks.
func TestUnitOfCgroup(t *testing.T) {
	for lines, want := range map[string]string{
		"0::/system.slice/gpuadm-drift.service\n":                                   "gpuadm-drift.service",
		"12:pids:/x\n1:name=systemd:/system.slice/gpuadm.service\n0::/\n":           "gpuadm.service",
		"0::/user.slice/user-0.slice/session-3.scope\n":                             "",
		"0::/kubepods.slice/cri-containerd-0123.scope\n":                            "",
		"0::/system.slice/system-serial\\x2dgetty.slice/serial-getty@ttyS0.service": "serial-getty@ttyS0.service",
	} {
		check.Equal(t, unitOfCgroup(lines), want, "%q: the unit", lines)
	}
}
