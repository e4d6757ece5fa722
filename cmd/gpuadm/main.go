// SPDX-License-Identifier: Apache-2.0

// Command gpuadm turns a machine with NVIDIA GPUs into a Kubernetes node, and keeps it one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/spf13/cobra"
)

func main() {
	// Go ends a program that writes to a closed stdout or stderr: `gpuadm apply | head` must not
	// leave a node half done.
	signal.Ignore(syscall.SIGPIPE)
	// crypto/x509 reads these variables; the caller's environment must not decide which CAs a root
	// process trusts.
	os.Unsetenv("SSL_CERT_FILE")
	os.Unsetenv("SSL_CERT_DIR")
	// Go wakes threads on all processors, of which a node has up to 200, and an apply has work for
	// a few: docs/figures.md has what that costs.
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), 4))
	os.Exit(run(context.Background(), system(), os.Args[1:]))
}

// system is the process's own environment.
func system() env {
	return env{
		stdin:    os.Stdin,
		stdout:   os.Stdout,
		stderr:   os.Stderr,
		getenv:   os.Getenv,
		root:     os.Geteuid() == 0,
		open:     local.Open,
		image:    local.Image,
		read:     readFile,
		stat:     os.Stat,
		public:   readable,
		confined: commands.Confined,

		restartSelf: commands.Reexec,
	}
}

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

// report prints the result of a command, and returns the exit code.
func report(e env, cmd *cobra.Command, err error) int {
	var f ending
	if e.ended != nil {
		f = *e.ended
	}
	var code exit
	if err == nil || errors.As(err, &code) {
		f.Exit = int(code)
	} else {
		f = judge(e, cmd, err, f)
	}
	if f.Format == 0 { // no run, and everything has been printed
		return f.Exit
	}
	if out := cmd.Flag("output"); (out == nil || out.Value.String() != "json" || printJSON(e.stdout, f) != nil) && f.Error != "" {
		f.print(e)
	}
	return f.Exit
}

// judge returns an error with its exit code, its advice, and the changes of the run.
func judge(e env, cmd *cobra.Command, err error, ran ending) ending {
	f := failureOf(err)
	f.Run, f.Stage, f.Changed, f.Deferred, f.Held, f.Reboot = ran.Run, ran.Stage, ran.Changed, ran.Deferred, ran.Held, ran.Reboot
	switch {
	case f.Spec != nil:
		f.Exit = exitUsage
	case errors.As(err, new(*host.Busy)):
		f.Exit, f.Try = exitAgain, []string{"wait until it has ended, and run the same command again"}
	case errors.As(err, &usage{}), cmd != nil && !cmd.Runnable():
		f.Exit = exitUsage
	case errors.As(err, &overdue{}):
		f.Try = append(f.Try, "apply again with a longer --deadline: it continues from here")
	case errors.Is(err, converge.ErrStopped):
		f.Exit = exitAgain
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

// An ending is the last object of -o json if a verb has made a run, or has failed: its result.
type ending struct {
	Format   int       `json:"format"`
	Error    string    `json:"error,omitempty"`
	Exit     int       `json:"exit"` // the exit code
	Because  []string  `json:"because,omitempty"`
	Undone   []string  `json:"undone,omitempty"` // what was rolled back
	Try      []string  `json:"try,omitempty"`
	Spec     []finding `json:"spec,omitempty"`   // faults of the files
	Run      string    `json:"run,omitempty"`    // the run's id in the journal; none if it had nothing to do
	Stage    string    `json:"stage,omitempty"`  // the stage that has failed, or waits
	Changed  int       `json:"changed"`          // the number of the run's changes, also before it was continued
	Deferred int       `json:"deferred"`         // changes that wait for an event
	Held     string    `json:"held,omitempty"`   // the run whose undo holds unattended applies
	Reboot   string    `json:"reboot,omitempty"` // why a reboot is needed
}

// ran keeps the result of a run, for the last object of -o json.
func (e env) ran(res converge.Result) {
	*e.ended = ending{
		Format: converge.PlanFormat, Run: res.Run, Stage: res.Stage, Changed: res.Changed, Deferred: len(res.Deferred), Held: res.Held, Reboot: res.Reboot,
	}
}

type finding struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
	Text    string `json:"text,omitempty"` // the line
}

// failureOf returns an error as gpuadm prints it.
func failureOf(err error) ending {
	f := ending{Format: converge.PlanFormat, Error: err.Error(), Exit: exitCannot}
	if t := (*trouble.Error)(nil); errors.As(err, &t) {
		f.Error, f.Because, f.Undone, f.Try = t.Error(), slices.Clone(t.Because), t.Undone, slices.Clone(t.Try)
	}
	var faults trouble.Faults
	errors.As(err, &faults)
	for _, w := range faults {
		f.Spec = append(f.Spec, finding{w.At.File, w.At.Line, w.At.Column, w.What, strings.Join(w.Try, "; or "), w.At.Text})
	}
	return f
}

// advise adds likely causes and advice if the fault is the machine's and not the spec's.
func (f *ending) advise(e env, err error) {
	readOnly, denied := errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission)
	denied = denied || errors.Is(err, syscall.EAFNOSUPPORT) // RestrictAddressFamilies=: no socket to systemd
	var confined []string
	if e.root && (readOnly || denied) && e.confined != nil {
		confined = e.confined()
	}
	f.Because = append(f.Because, confined...)
	switch {
	case len(f.Try) > 0:
	case len(confined) > 0:
		f.Try = []string{"run it without these limits: in a root shell, or in a unit without these settings"}
	case readOnly:
		f.Try = []string{"find out why it is read-only (dmesg shows disk errors), then: mount -o remount,rw"}
	case errors.Is(err, syscall.ENOSPC):
		f.Try = []string{"free space (df -h and df -i show where), and run the same command again"}
	case errors.As(err, new(*host.GPUError)) && denied: // MIG mode needs CAP_SYS_ADMIN: MIG user guide, "Device Nodes and Capabilities"
		f.Try = []string{"run it as root, in a container only with CAP_SYS_ADMIN: " + e.again()}
	case denied && !e.root:
		f.Try = []string{"run it as root: " + e.again()}
	}
}

// print prints a failure as text: each error of the spec with a mark under its place, or the error
// with its reasons and advice.
func (f ending) print(e env) {
	for _, w := range f.Spec {
		printf(e.stderr, "gpuadm: %s:%d:%d: %s\n", w.File, w.Line, w.Column, w.Message)
		if w.Text != "" {
			before := []rune(w.Text)
			blank := strings.Map(func(r rune) rune {
				if r == '\t' {
					return r
				}
				return ' '
			}, string(before[:min(len(before), w.Column-1)]))
			width := e.width(e.stderr)
			if width > 0 {
				width = max(width-10, w.Column+2)
			}
			printf(e.stderr, "  %5d | %s\n        | %s^\n", w.Line, whole(clip(w.Text, width)), whole(blank))
		}
		if w.Fix != "" {
			reasons(e.stderr, nil, nil, []string{w.Fix})
		}
	}
	if n := len(f.Spec); n > 0 {
		printf(e.stderr, "%s in the spec. Nothing was touched.\n", trouble.Count(n, "error"))
		return
	}
	printf(e.stderr, "gpuadm: %s\n", f.Error)
	undone := f.Undone
	if more := len(undone) - 5; more > 1 { // each was printed when it was rolled back, and a long list would hide the cause
		undone = append(slices.Clone(undone[:5]), fmt.Sprintf("and %d more changes; -o json lists all", more))
	}
	reasons(e.stderr, f.Because, undone, f.Try)
}

// reasons prints the lines below an error.
func reasons(w io.Writer, because, undone, try []string) {
	rows(w, 2, 8, "because", because...)
	rows(w, 2, 8, "undone", undone...)
	rows(w, 2, 8, "try", try...)
}
