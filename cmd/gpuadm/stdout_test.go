// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// speced is a node that has a spec.
func speced(t *testing.T) *simhost.Node {
	t.Helper()
	w := incident.Joined(t, true)
	w.Put("etc/gpuadm/node.toml", "format = 1\n[runtime]\n")
	return w.Node()
}

// refusing is a stream that takes no byte.
type refusing struct{ why error }

func (r refusing) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: r.why}
}

// printing are commands that only print.
var printing = []string{
	"status", "status -o json", "plan", "plan -o json", "facts", "facts -o json", "owners", "owners -o json",
	"manifest", "doctor", "doctor -o json", "doctor GPU-001", "config", "validate", "apply --dry-run -o json", "mig profiles", "version", "--help", "help spec",
}

// A command whose answer does not reach its file, as on a full disk, ends with an error that says so.
func TestFullStdout(t *testing.T) {
	for _, line := range printing {
		n := speced(t)
		var errs bytes.Buffer
		e := envOn(n, &errs)
		e.stdout = refusing{syscall.ENOSPC}
		code := run(t.Context(), e, strings.Fields(line))

		const want = "cannot write the answer to standard output: write /dev/stdout: no space left on device"
		said := errs.String()
		isSaid := strings.Contains(said, want) && strings.Count(said, "no space left") == 1
		check.That(t, code != 0 && isSaid, "gpuadm %s: exit %d\n%s", line, code, said)
	}
}

// A reader that has read enough is not an error: gpuadm facts | head.
func TestGoneReader(t *testing.T) {
	for _, line := range printing {
		n := speced(t)
		var all, errs bytes.Buffer
		whole := envOn(n, &all)
		whole.stderr = &errs
		want := run(t.Context(), whole, strings.Fields(line))
		said := errs.String()

		errs.Reset()
		cut := whole
		cut.stdout = refusing{syscall.EPIPE}
		code := run(t.Context(), cut, strings.Fields(line))
		same := code == want && errs.String() == said
		check.That(t, same, "gpuadm %s: exit %d, want %d\n%s", line, code, want, errs.String())
	}
}
