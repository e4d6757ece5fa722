// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
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
		{overdue{&converge.Trouble{What: "cannot make x", Err: slow{}}}, exitCannot, "longer --deadline"},
	} {
		var out strings.Builder
		e := env{stdout: &out, stderr: &out, getenv: func(string) string { return "" }}
		if code := report(e, newApply(&common{env: e}), test.err); code != test.code || !strings.Contains(out.String(), test.try) {
			t.Errorf("%#v: exit code %d\n%s", test.err, code, out.String())
		}
	}
}
