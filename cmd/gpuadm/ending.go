// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The exit codes, one per next step of the caller.
const (
	exitCannot  = 1                 // an operator must fix the cause
	exitUsage   = agent.ExitUsage   // fix the spec or the command line; another run does not help
	exitPending = agent.ExitPending // changes are pending: decide
	exitReboot  = agent.ExitReboot  // reboot; then gpuadm continues
	exitAgain   = agent.ExitAgain   // run it again: sysexits' EX_TEMPFAIL
)

// usage is an error of the command line or the spec.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

// overdue is the error of a run that has exceeded its --deadline.
type overdue struct{ error }

func (o overdue) Unwrap() error { return o.error }

// exit is an exit code whose messages are already printed.
type exit int

func (x exit) Error() string { return fmt.Sprintf("exit code %d", int(x)) }

// An ending is the last object of -o json if a verb has made a run, or has failed: its result.
type ending struct {
	Format   int       `json:"format"`
	Error    string    `json:"error,omitempty"`
	Exit     int       `json:"exit"` // the exit code
	Because  []string  `json:"because,omitempty"`
	Undone   []string  `json:"undone,omitempty"` // what was rolled back, or that nothing was touched
	Try      []string  `json:"try,omitempty"`
	Spec     []finding `json:"spec,omitempty"`   // faults of the files
	Run      string    `json:"run,omitempty"`    // the run's id in the journal; none if it had nothing to do
	Stage    string    `json:"stage,omitempty"`  // the stage that has failed, or waits
	Changed  int       `json:"changed"`          // how many changes the run has made, in all its parts
	Deferred int       `json:"deferred"`         // changes that wait for an event
	Unknown  int       `json:"unknown"`          // things whose state could not be read
	Held     string    `json:"held,omitempty"`   // the run whose undo holds unattended applies
	Reboot   string    `json:"reboot,omitempty"` // why a reboot is needed
}

type finding struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
	Text    string `json:"text,omitempty"` // the line
}

// exitOf is the exit code of a command that compares the machine with its spec; nil for 0.
func exitOf(o converge.Outcome) error {
	switch o {
	case converge.EndsCannot:
		return exit(exitCannot)
	case converge.EndsUnknown, converge.EndsWaiting:
		return exit(exitAgain)
	case converge.EndsPending:
		return exit(exitPending)
	case converge.EndsReboot:
		return exit(exitReboot)
	}
	return nil
}

// ran keeps the result of a run, for the last object of -o json.
func (e env) ran(result converge.Result) {
	*e.ended = ending{
		Format:   converge.PlanFormat,
		Run:      result.Run,
		Stage:    result.Stage,
		Changed:  result.Changed,
		Deferred: len(result.Deferred) - result.Unknown(),
		Unknown:  result.Unknown(),
		Held:     result.Held,
		Reboot:   result.Reboot,
	}
}

// report prints the result of a command, and returns the exit code.
func report(e env, cmd *cobra.Command, err error) int {
	var end ending
	if e.ended != nil {
		end = *e.ended
	}

	var code exit
	if err == nil || errors.As(err, &code) {
		end.Exit = int(code)
	} else {
		end = failed(e, cmd, err, end)
	}

	if end.Format == 0 { // no run, and everything has been printed
		return end.Exit
	}

	output := cmd.Flag("output")
	asJSON := output != nil && output.Value.String() == "json"
	printed := asJSON && printJSON(e.stdout, end) == nil
	if !printed && end.Error != "" {
		end.print(e)
	}
	return end.Exit
}

// failed returns an error with its exit code, its advice, and the changes of the run.
func failed(e env, cmd *cobra.Command, err error, ran ending) ending {
	f := failureOf(err)
	f.Run = ran.Run
	f.Stage = ran.Stage
	f.Changed = ran.Changed
	f.Deferred = ran.Deferred
	f.Unknown = ran.Unknown
	f.Held = ran.Held
	f.Reboot = ran.Reboot

	switch {
	case f.Spec != nil:
		f.Exit = exitUsage
	case errors.As(err, new(*host.Busy)):
		f.Exit = exitAgain
		f.Try = []string{"wait until it has ended, and run the same command again"}
	case errors.As(err, new(*local.NoFolder)):
		f.Exit = exitUsage
		f.Try = append(f.Try, "mount the image, and name the folder where it is mounted")
	case errors.As(err, &usage{}), cmd != nil && !cmd.Runnable():
		f.Exit = exitUsage
	case errors.As(err, &overdue{}):
		f.Try = append(f.Try, "apply again with a longer --deadline: it continues from here")
	case errors.Is(err, converge.ErrStopped):
		f.Exit = exitAgain
	case trouble.IsUnknown(err) && !trouble.Passes(err):
		f.Exit = exitAgain
		f.advise(e, err)
	case trouble.Passes(err):
		f.Exit = exitAgain
		if len(f.Try) == 0 {
			f.Try = []string{"wait, and run the same command again: it continues from here"}
		}
	default:
		f.advise(e, err)
	}

	return f
}

// failureOf returns an error as gpuadm prints it.
func failureOf(err error) ending {
	f := ending{
		Format: converge.PlanFormat,
		Error:  err.Error(),
		Exit:   exitCannot,
	}

	var t *trouble.Error
	if errors.As(err, &t) {
		f.Error = t.Error()
		f.Because = slices.Clone(t.Because)
		f.Undone = t.Undone
		f.Try = slices.Clone(t.Try)
	}

	var faults trouble.Faults
	errors.As(err, &faults)
	for _, fault := range faults {
		f.Spec = append(f.Spec, finding{
			File:    fault.At.File,
			Line:    fault.At.Line,
			Column:  fault.At.Column,
			Message: fault.What,
			Fix:     trouble.Either(fault.Try),
			Text:    fault.At.Text,
		})
	}

	return f
}

// advise adds likely causes and advice if the fault is the machine's and not the spec's.
func (f *ending) advise(e env, err error) {
	mount, mounted := mountOf(e, err)
	if mounted && isReadOnly(err) {
		f.Because = append(f.Because, mount.Point+" is mounted read-only, for all processes of this machine")
		f.Try = append(f.Try, mount.Remount()+", once you know why (dmesg shows disk errors)")
		return
	}

	var file *host.FileError
	if errors.As(err, &file) && file.Attribute.Set != "" {
		clear := fmt.Sprintf("sudo chattr -%s %s", file.Attribute.Set, host.ShellWord(file.Attribute.Of))
		f.Try = append(f.Try, "see what has set it, then: "+clear)
		return
	}

	limits := limitsOf(e, err)
	f.Because = append(f.Because, limits...)
	switch {
	case len(f.Try) > 0: // the error has its own advice
	case len(limits) > 0:
		f.Try = []string{"run it without these limits: in a root shell, or in a unit without these settings"}
	default:
		f.Try = adviceOn(e, err)
	}
}

// adviceOn is what an operator can do about a fault of the machine; nil if gpuadm knows nothing.
func adviceOn(e env, err error) []string {
	switch {
	case isReadOnly(err):
		return []string{"find out why it is read-only (dmesg shows disk errors), then: mount -o remount,rw"}
	case errors.Is(err, syscall.ENOSPC):
		return []string{"free space (df -h and df -i show where), and run the same command again"}
	case isDenied(err) && errors.As(err, new(*host.GPUError)):
		// MIG mode needs CAP_SYS_ADMIN: MIG user guide, "Device Nodes and Capabilities".
		return []string{"run it as root, in a container only with CAP_SYS_ADMIN: " + e.again()}
	case isDenied(err) && !e.root:
		return []string{"run it as root: " + e.again()}
	}
	return nil
}

// limitsOf are the limits of root's own process that may be the cause of an error.
func limitsOf(e env, err error) []string {
	refused := isReadOnly(err) || isDenied(err)
	if !refused || !e.root || e.confined == nil {
		return nil
	}
	return e.confined()
}

func isReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }

// isDenied reports whether the kernel has refused something to this process. EAFNOSUPPORT is the
// refusal of RestrictAddressFamilies=: the process gets no socket to systemd.
func isDenied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EAFNOSUPPORT)
}

// mountOf is the read-only mount of the file that an error names, if it is read-only for the whole
// machine: then no limit of this process is the cause.
func mountOf(e env, err error) (m commands.Mount, ok bool) {
	var file *host.FileError
	if e.readOnlyMount == nil || !errors.As(err, &file) {
		return m, false
	}
	return e.readOnlyMount(cmp.Or(file.Leads, file.Path))
}

// print prints a failure as text: each error of the spec with a mark under its place, or the error
// with its reasons and advice.
func (f ending) print(e env) {
	for _, w := range f.Spec {
		w.print(e)
	}
	if n := len(f.Spec); n > 0 {
		printf(e.stderr, "%s in the spec. Nothing was touched.\n", trouble.Count(n, "error"))
		return
	}

	printf(e.stderr, "gpuadm: %s\n", f.Error)
	// Each change was printed when it was rolled back, and a long list would hide the cause.
	undone := f.Undone
	if more := len(undone) - 5; more > 1 {
		undone = append(slices.Clone(undone[:5]), fmt.Sprintf("and %d more changes; -o json lists all", more))
	}
	reasons(e.stderr, f.Because, undone, f.Try)
}

// print prints a fault of a file, its line with a mark under the place, and the fix.
func (w finding) print(e env) {
	printf(e.stderr, "gpuadm: %s:%d:%d: %s\n", w.File, w.Line, w.Column, w.Message)
	if w.Text != "" {
		width := e.width(e.stderr)
		if width > 0 {
			width = max(width-10, w.Column+2)
		}
		text := clip(w.Text, width)
		printf(e.stderr, "  %5d | %s\n        | %s^\n", w.Line, whole(text), whole(w.blanks()))
	}

	if w.Fix != "" {
		reasons(e.stderr, nil, nil, []string{w.Fix})
	}
}

// blanks are as wide as the line before the place.
func (w finding) blanks() string {
	before := []rune(w.Text)
	before = before[:min(len(before), w.Column-1)]
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, string(before))
}

// reasons prints the lines below an error.
func reasons(w io.Writer, because, undone, try []string) {
	rows(w, 2, 8, "because", because...)
	rows(w, 2, 8, "undone", undone...)
	rows(w, 2, 8, "try", try...)
}
