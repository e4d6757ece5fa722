// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The exit codes, one per next act of the caller.
const (
	exitCannot  = 1  // an operator must fix the cause
	exitUsage   = 2  // fix the spec or the command line; another run does not help
	exitPending = 3  // changes are pending: decide
	exitReboot  = 4  // reboot; then gpuadm continues
	exitAgain   = 75 // run it again: sysexits' EX_TEMPFAIL
)

// usage is an error of the command line or the spec.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

// overdue is an error of a run that is over its --deadline.
type overdue struct{ error }

func (o overdue) Unwrap() error { return o.error }

// exit is an exit code that needs no message.
type exit int

func (x exit) Error() string { return fmt.Sprintf("exit code %d", int(x)) }

// report prints an error and returns the exit code.
func report(e env, cmd *cobra.Command, err error) int {
	var code exit
	var wrong trouble.Faults
	var busy *host.Busy
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	code = exitCannot
	t := &trouble.Error{What: err.Error()}
	if inner := (*trouble.Error)(nil); errors.As(err, &inner) {
		t = inner
	}
	switch {
	case errors.As(err, &wrong):
		code = exitUsage
	case errors.As(err, &busy):
		code, t = exitAgain, &trouble.Error{What: err.Error(), Try: []string{"wait until it has ended, and run the same command again"}}
	case errors.As(err, &usage{}), cmd != nil && !cmd.Runnable(), strings.HasPrefix(err.Error(), "unknown command"):
		code = exitUsage
	case errors.As(err, &overdue{}):
		t = &trouble.Error{What: t.Error(), Because: t.Because, Undone: t.Undone, Try: append(slices.Clone(t.Try), "apply again with a longer --deadline: it continues from here")}
	case errors.Is(err, converge.ErrStopped):
		code = exitAgain
	case trouble.Passes(err):
		code = exitAgain
		if len(t.Try) == 0 {
			t = &trouble.Error{What: t.Error(), Because: t.Because, Undone: t.Undone, Try: []string{"wait, and run the same command again: it continues from here"}}
		}
	default:
		advise(e, t, err)
	}
	if out := cmd.Flag("output"); out != nil && out.Value.String() == "json" {
		printJSONError(e, int(code), t, wrong)
	} else if wrong != nil {
		printSpecErrors(e, wrong)
	} else {
		printTrouble(e, t)
	}
	return int(code)
}

// advise adds likely causes and what to do, where the machine and not the spec is at fault.
func advise(e env, t *trouble.Error, err error) {
	readOnly, denied := errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission)
	denied = denied || errors.Is(err, syscall.EAFNOSUPPORT) // RestrictAddressFamilies=: no socket to systemd
	var confined []string
	if e.root && (readOnly || denied) && e.confined != nil {
		confined = e.confined()
	}
	t.Because = append(t.Because, confined...)
	switch {
	case len(t.Try) > 0:
	case len(confined) > 0:
		t.Try = []string{"run it without these limits: in a root shell, or in a unit without these settings"}
	case readOnly:
		t.Try = []string{"find out why it is read-only (dmesg shows disk errors), then: mount -o remount,rw"}
	case errors.Is(err, syscall.ENOSPC):
		t.Try = []string{"free space (df -h and df -i show where), and run the same command again"}
	case errors.As(err, new(*host.GPUError)) && denied: // MIG mode needs CAP_SYS_ADMIN: MIG user guide, "Device Nodes and Capabilities"
		t.Try = []string{"run it as root, in a container only with CAP_SYS_ADMIN: " + e.again()}
	case denied && !e.root:
		t.Try = []string{"run it as root: " + e.again()}
	}
}

// printTrouble prints an error with its reasons and what to do.
func printTrouble(e env, t *trouble.Error) {
	printf(e.stderr, "gpuadm: %s\n", t)
	undone := t.Undone
	if more := len(undone) - 5; more > 1 { // each has had its line when it was rolled back; the cause must not be lost between them
		undone = append(slices.Clone(undone[:5]), fmt.Sprintf("and %d more changes; -o json lists all", more))
	}
	for _, part := range []struct {
		word  string
		lines []string
	}{{"because", t.Because}, {"undone", undone}, {"try", t.Try}} {
		for i, line := range part.lines {
			word := part.word
			if i > 0 {
				word = ""
			}
			printf(e.stderr, "  %-8s %s\n", word, line)
		}
	}
}

// printSpecErrors prints each error with its line and a mark under the place.
func printSpecErrors(e env, wrong trouble.Faults) {
	for _, w := range wrong {
		printf(e.stderr, "gpuadm: %s\n", w)
		if at := w.At; at.Text != "" {
			printf(e.stderr, "  %5d | %s\n        | %s^\n", at.Line, at.Text, indent(at.Text, at.Column))
		}
		if len(w.Try) > 0 {
			printf(e.stderr, "  try      %s\n", strings.Join(w.Try, "; or "))
		}
	}
	n := "1 error"
	if len(wrong) > 1 {
		n = fmt.Sprintf("%d errors", len(wrong))
	}
	printf(e.stderr, "%s in the spec. Nothing was touched.\n", n)
}

// indent returns blanks up to a column, with its tabs, so that the mark is under its column.
func indent(text string, column int) string {
	var b strings.Builder
	for i, r := range []rune(text) {
		if i >= column-1 {
			break
		}
		if r != '\t' {
			r = ' '
		}
		b.WriteRune(r)
	}
	return b.String()
}

// failure is what every verb prints with -o json where it fails.
type failure struct {
	Format  int       `json:"format"`
	Error   string    `json:"error"`
	Exit    int       `json:"exit"` // the exit code
	Because []string  `json:"because,omitempty"`
	Undone  []string  `json:"undone,omitempty"` // what was rolled back
	Try     []string  `json:"try,omitempty"`
	Spec    []finding `json:"spec,omitempty"` // what is wrong in the files
}

type finding struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
}

func printJSONError(e env, code int, t *trouble.Error, wrong trouble.Faults) {
	v := failure{converge.PlanFormat, t.Error(), code, t.Because, t.Undone, t.Try, nil}
	for _, w := range wrong {
		v.Spec = append(v.Spec, finding{w.At.File, w.At.Line, w.At.Column, w.What, strings.Join(w.Try, "; or ")})
	}
	if err := printJSON(e.stdout, v); err != nil {
		printTrouble(e, t)
	}
}
