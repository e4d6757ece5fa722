// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// slow is a server that has not answered in the time that one request is given.
type slow struct{}

func (slow) Error() string { return "api.example does not answer in time" }
func (slow) Unwrap() error { return context.DeadlineExceeded }
func (slow) Waits() bool   { return true }

// TestWhoseTimeIsOver tells a server that does not answer in time, which may answer the next run, from a run whose own --deadline
// is over.
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
		e := env{stdout: &out, stderr: &out, getenv: func(string) string { return "" }}
		if code := report(e, newApply(&common{env: e}), test.err); code != test.code || !strings.Contains(out.String(), test.try) {
			t.Errorf("%#v: exit code %d\n%s", test.err, code, out.String())
		}
	}
}

// TestHelpExit holds the page on exit codes to the codes that there are, and each to what a script does with it.
func TestHelpExit(t *testing.T) {
	var out strings.Builder
	e := env{stdout: &out, stderr: &out, getenv: func(string) string { return "" }}
	if code := run(context.Background(), e, []string{"help", "exit"}); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &out)
	}
	var told []string
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 {
			t.Errorf("%d characters: %s", len(line)-1, line)
		}
		if m := regexp.MustCompile(`^  (\d+) +[A-Z]`).FindStringSubmatch(line); m != nil {
			told = append(told, m[1])
		}
	}
	if want := fmt.Sprint([]int{0, exitCannot, exitUsage, exitPending, exitReboot, exitAgain}); fmt.Sprint(told) != want {
		t.Errorf("it tells of %v, want %s", told, want)
	}
	out.Reset()
	if run(context.Background(), e, []string{"help"}); !strings.Contains(out.String(), "gpuadm help exit") {
		t.Errorf("help does not name it:\n%s", &out)
	}
}
