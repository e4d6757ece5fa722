// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// TestLabPlanTouchesNothing: not a byte, mode, owner or time of /etc, /usr and /var is another after plan and status.
func TestLabPlanTouchesNothing(t *testing.T) {
	t.Parallel()
	each(t, []string{"2.4"}, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		look := func() lab.Tree { return n.Tree([]string{"/etc", "/usr", "/var"}) }
		before, pid := look(), n.MainPID(daemon)
		if out := n.gpuadm(0, "plan").Stdout; !strings.Contains(out, "Nothing was touched.") {
			t.Errorf("plan:\n%s", out)
		}
		n.gpuadm(3, "plan", "--exit-code")
		n.gpuadm(3, "status")
		if diff := before.Touched(look()); diff != "" {
			t.Errorf("touched:\n%s", diff)
		}
		if n.MainPID(daemon) != pid {
			t.Error("containerd was restarted")
		}
		if left := n.leftovers(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// TestLabApplyTwiceUndo: apply converges with one restart, under which a container keeps running; a second apply does
// nothing; undo restores bytes, mode, owner and a daemon that runs with them; status is right all along.
func TestLabApplyTwiceUndo(t *testing.T) {
	t.Parallel()
	each(t, []string{"2.4"}, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		n.Must("chmod", "640", config)
		n.Must("chown", "root:adm", config)
		n.Must("systemctl", "restart", daemon)
		n.answers()
		c := n.ContainerRun("work")
		before, effect, starts := n.everything(), n.effect(), n.starts()
		n.gpuadm(3, "status")

		n.gpuadm(0, "apply")
		n.working()
		n.configured()
		if s := n.starts(); s != starts+1 {
			t.Errorf("containerd started %d times for one apply", s-starts)
		}
		if !c.Runs() {
			t.Error("the container did not survive apply")
		}
		n.gpuadm(0, "status")

		pid, applied := n.MainPID(daemon), n.everything()
		if r := n.gpuadm(0, "apply"); r.Stdout != "Nothing to do.\n" {
			t.Errorf("apply again: %s", r)
		}
		if diff := applied.Touched(n.everything()); diff != "" || n.MainPID(daemon) != pid {
			t.Errorf("apply again: containerd's process %d, was %d; touched:\n%s", n.MainPID(daemon), pid, diff)
		}

		n.gpuadm(0, "undo")
		n.working()
		if diff := before.Diff(n.everything()); diff != "" {
			t.Errorf("undo did not undo:\n%s", diff)
		}
		if e := n.effect(); e.DefaultRuntime != effect.DefaultRuntime || len(e.Runtimes) != len(effect.Runtimes) {
			t.Errorf("after undo containerd's default is %q, was %q", e.DefaultRuntime, effect.DefaultRuntime)
		}
		if s := n.starts(); s != starts+2 {
			t.Errorf("containerd started %d times for apply and undo", s-starts)
		}
		if !c.Runs() {
			t.Error("the container did not survive undo")
		}
		n.gpuadm(3, "status")
		if left := n.leftovers(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// TestLabRuntimeChanged: what an earlier node.toml had containerd do goes with it, and containerd's own judgement of the change
// does not take that for a change outside gpuadm.
func TestLabRuntimeChanged(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"", "2.4"} {
		n := boot(t, lab.Options{Dist: "trixie", Containerd: engine, GPUs: 8})
		before := n.effect()
		for _, want := range []struct{ spec, handler, byDefault string }{
			{"set_as_default = true", "nvidia", "nvidia"},
			{"handler = \"gpu\"\nset_as_default = true", "gpu", "gpu"},
			{"handler = \"gpu\"", "gpu", before.DefaultRuntime},
			{"cdi = false", "nvidia", before.DefaultRuntime},
		} {
			n.Put(specFile, "format = 1\n[runtime]\n"+want.spec+"\n", 0o644)
			n.gpuadm(0, "apply")
			n.working()
			is := n.effect()
			if is.DefaultRuntime != want.byDefault || len(is.Runtimes) != len(before.Runtimes)+1 {
				t.Errorf("%s, %s: default %q of %v", n.Options, want.spec, is.DefaultRuntime, is.Runtimes)
			}
			if _, there := is.Runtimes[want.handler]; !there {
				t.Errorf("%s, %s: no %s in %v", n.Options, want.spec, want.handler, is.Runtimes)
			}
		}
	}
}
