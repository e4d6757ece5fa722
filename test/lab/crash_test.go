// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/labstage"
	"github.com/gpuadm/gpuadm/test/must"
)

// crash is a node on which apply is cut short again and again, always from the same beginning.
type crash struct {
	node
	before, after lab.Tree
	touches       int
	left          map[string]lab.Touch // what was left behind, one of a kind, and when
}

func newCrash(t *testing.T, o lab.Options) *crash {
	t.Helper()
	c := &crash{node: boot(t, o), left: map[string]lab.Touch{}}
	c.before = c.files()
	c.Touches(func(lab.Touch) bool { c.touches++; return true }, "gpuadm", "apply")
	c.working()
	c.configured()
	c.after = c.files()
	c.t.Logf("apply makes %d touches", c.touches)
	c.startAgain()
	return c
}

// heal applies again after something went wrong, and wants what an apply that was not disturbed
// makes.
func (c *crash) heal() {
	c.t.Helper()
	c.gpuadm(0, "apply")
	c.working()
	check.None(c.t, c.after.Diff(c.files()), "not the tree of an undisturbed apply:")
	c.gpuadm(0, "status")
}

// clean takes away what apply left behind and the next apply did not take away, and notes one of
// each kind.
func (c *crash) clean(touch lab.Touch) {
	c.t.Helper()
	for _, name := range c.leftovers() {
		kind := strings.TrimRight(name, "0123456789")
		if _, known := c.left[kind]; !known {
			c.left[kind] = touch
		}
		c.Must("rm", "-rf", name)
	}
}

// end wants that nothing was left behind.
func (c *crash) end() {
	c.t.Helper()
	for _, kind := range slices.Sorted(maps.Keys(c.left)) {
		c.t.Errorf("%s… is left behind, also by the next apply; first after gpuadm ended before touch %v", kind, c.left[kind])
	}
}

// recover wants all to come out well after a disturbance.
func (c *crash) recover(touch lab.Touch, how string) {
	c.t.Helper()
	c.heal()
	c.clean(touch)
	c.startAgain()
	must.That(c.t, !c.t.Failed(), "that was %s", how)
}

// startAgain undoes, wants the very beginning, and forgets the journal.
func (c *crash) startAgain() {
	c.t.Helper()
	c.gpuadm(0, "undo", "--to", "all")
	c.working()
	check.None(c.t, c.before.Diff(c.files()), "not the tree from before apply:")
	c.Must("rm", "-rf", state)
}

// TestLabKilledAtEachTouch: gpuadm is killed with signal 9 right before each of its touches, or
// each fifth. Applied again, it ends with the same tree and a working daemon; undone, in the tree
// from before. At night the two distributions share the touches, and change places in the next
// night: what gpuadm does before a touch depends on neither, and the laws have each on both.
func TestLabKilledAtEachTouch(t *testing.T) {
	t.Parallel()
	either(t, func(t *testing.T, o lab.Options) {
		c := newCrash(t, o)
		first := 1
		step := 5
		if check.All() {
			step = len(lab.Dists())
			first += (slices.Index(lab.Dists(), o.Dist) + check.Turn(step)) % step
		}
		for at := first; ; at += step {
			var touch lab.Touch
			r := c.Touches(func(now lab.Touch) bool {
				touch = now
				return now.N < at
			}, "gpuadm", "apply")
			if r.Exit == 0 {
				t.Logf("%d touches, killed before one of %d", c.touches, step)
				c.end()
				return
			}

			must.That(t, r.Exit == 137, "before touch %v: %s", touch, r)
			c.recover(touch, fmt.Sprintf("gpuadm killed before touch %v", touch))
		}
	})
}

// TestLabPowerLoss: the host's power is lost at ten random moments of an apply: before a random
// touch, or up to a fifth of a second later, when systemd or containerd may be at work for it.
// GPUADM_TEST_SEED repeats a run.
func TestLabPowerLoss(t *testing.T) {
	t.Parallel()
	either(t, func(t *testing.T, o lab.Options) {
		seed := uint64(time.Now().UnixNano())
		if s := os.Getenv("GPUADM_TEST_SEED"); s != "" {
			var err error
			if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
				t.Fatalf("cannot read GPUADM_TEST_SEED: %v", err)
			}
		}

		t.Logf("GPUADM_TEST_SEED=%d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		c := newCrash(t, o)
		for range 10 {
			at, late := 1+random.IntN(c.touches), time.Duration(random.IntN(2)*random.IntN(200))*time.Millisecond
			var touch lab.Touch
			var cut sync.WaitGroup
			c.Touches(func(now lab.Touch) bool {
				if now.N == at {
					touch = now
					if late == 0 {
						c.Cut()
						return false
					}
					cut.Go(func() { time.Sleep(late); c.Cut() })
				}
				return true
			}, "gpuadm", "apply")
			cut.Wait() // apply may have been quicker
			what := fmt.Sprintf("power lost %s after touch %v", late, touch)
			t.Log(what)
			c.PowerLoss()
			c.recover(touch, what)
		}

		c.end()
	}, "2.4")
}

// TestLabKilledWhileChildRuns: gpuadm is killed with signal 9 while a command that it started still
// runs. That command goes on changing the machine, so the next gpuadm touches nothing: it exits
// with 75 and names the command and its process. Once that has ended, gpuadm works.
func TestLabKilledWhileChildRuns(t *testing.T) {
	t.Parallel()
	withStage := withLabStage(t)
	either(t, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		const slow = "/usr/local/sbin/gpuadm-slow"
		n.Put(slow, withStage, 0o755)
		n.Put(labstage.Slow, "", 0o644)
		n.Must("systemd-run", "--unit=first", "--property=KillMode=process", slow, "apply")
		child := n.process(labstage.Sleep)
		parent := n.MainPID("first.service")
		busy := fmt.Sprintf("gpuadm: another gpuadm run is at work: process %d (%s apply)", parent, slow)
		r := n.gpuadm(75, "apply")
		check.That(t, strings.HasPrefix(r.Stderr, busy), "while both run it does not say %q: %s", busy, r)

		n.KillMain("first.service")
		must.That(t, n.process(labstage.Sleep) == child, "the child did not survive gpuadm")
		before, pid := n.everything(), n.MainPID(daemon)
		busy = fmt.Sprintf("gpuadm: a command of a killed gpuadm run is still at work: process %s (%s)", child, labstage.Sleep)
		for _, verb := range []string{"apply", "undo --yes"} {
			r := n.gpuadm(75, strings.Fields(verb)...)
			check.That(t, strings.HasPrefix(r.Stderr, busy) && strings.Contains(r.Stderr, "try      wait until it has ended"),
				"%s does not say %q and what to do: %s", verb, busy, r)
			t.Logf("%s: %s", verb, r)
		}

		if diff := before.Touched(n.everything()); diff != "" || n.MainPID(daemon) != pid {
			t.Errorf("containerd's process is %d, was %d; touched:\n%s", n.MainPID(daemon), pid, diff)
		}
		n.gpuadm(3, "status") // looking is allowed meanwhile

		n.Must("kill", child)
		eventually(func() bool { return n.Exec("test", "-e", "/proc/"+child).Exit != 0 })
		n.Must("rm", labstage.Slow, slow)
		n.gpuadm(0, "apply")
		n.configured()
		n.working()
		n.gpuadm(0, "status")
	})
}

// process is the one process with this command line, in the host's numbers; it waits for it to
// come.
func (n node) process(command string) string {
	n.t.Helper()
	var pids []string
	if !eventually(func() bool {
		pids = strings.Fields(n.Exec("pgrep", "--full", "--exact", command).Stdout)
		return len(pids) == 1
	}) {
		n.t.Fatalf("processes %q: %v", command, pids)
	}

	return pids[0]
}
