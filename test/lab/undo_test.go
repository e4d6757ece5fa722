// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// TestLabUndoKilledAtEachTouch: gpuadm undo is killed with signal 9 right before each of its touches, or some: stride. Every other time
// undo is made again, and ends in the tree from before apply; each time apply then ends in the tree that an undisturbed
// apply makes, with a daemon that runs with it. Between two kills the journal is kept, as on a machine with a life.
func TestLabUndoKilledAtEachTouch(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, o lab.Options) {
		c := newCrash(t, o)
		c.gpuadm(0, "apply")
		for at := 1; ; at += stride(o) {
			var touch lab.Touch
			r := c.Touches(func(now lab.Touch) bool { touch = now; return now.N < at }, "gpuadm", "undo")
			if r.Exit == 0 {
				t.Logf("killed before one of %d touches of undo", stride(o))
				c.undone()
				c.end()
				return
			}
			if r.Exit != 137 {
				t.Fatalf("before touch %v: %s", touch, r)
			}
			if at/stride(o)%2 == 0 { // the same again; where nothing was left to undo, it says so
				c.gpuadm(0, "undo", "--to", "all")
				c.undone()
			}
			c.gpuadm(0, "apply")
			c.runsWithIt()
			if diff := c.after.Diff(c.files()); diff != "" {
				c.t.Errorf("not the tree of an undisturbed apply:\n%s", diff)
			}
			if out := c.gpuadm(0, "status"); !strings.Contains(out.Stdout, "\nConverged.") {
				c.t.Errorf("status: %s", out)
			}
			c.clean(touch)
			if t.Failed() {
				t.Fatalf("that was gpuadm undo killed before touch %v", touch)
			}
		}
	})
}

// undone wants the tree from before apply, and a daemon that works.
func (c *crash) undone() {
	c.t.Helper()
	c.runsWithIt()
	if diff := c.before.Diff(c.files()); diff != "" {
		c.t.Errorf("not the tree from before apply:\n%s", diff)
	}
}

// runsWithIt wants a daemon that answers and has started after the last change of its file. Unlike working it leaves the
// folder's own time aside: an undo that was killed before its rename has left the file as it was, and no restart is due.
func (n node) runsWithIt() {
	n.t.Helper()
	if !n.answers() {
		return
	}
	words := strings.Fields(n.Must("busctl", "get-property", "org.freedesktop.systemd1",
		"/org/freedesktop/systemd1/unit/containerd_2eservice", "org.freedesktop.systemd1.Service", "ExecMainStartTimestamp"))
	started, err := strconv.Atoi(words[len(words)-1]) // in microseconds
	if err != nil {
		n.t.Fatalf("cannot read when containerd started: %v", err)
	}
	since := fmt.Sprintf("@%d.%06d", started/1e6, started%1e6)
	if r := n.Exec("find", "/etc/containerd", "-type", "f", "-newerct", since); r.Exit != 0 || r.Stdout != "" {
		n.t.Errorf("containerd started before these changed: %s", r)
	}
}
