// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Law 1: a plan touches nothing, and asks nothing that would.
func TestPlanTouchesNothing(t *testing.T) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		n := m.boot(t)
		before := n.Tree()
		plan(t, n, e())
		check.That(t, n.Touches() == 0 && n.Tree() == before && len(n.Violations()) == 0, "%d touches, violations %v", n.Touches(), n.Violations())
	})
}

// What cannot be made is refused before anything is touched, with a reason and a fix.
func TestRefusalsTouchNothing(t *testing.T) {
	refused := 0
	for _, m := range machines(t) {
		for name, text := range sections {
			n, e := m.boot(t), engine(t, text)
			if len(plan(t, n, e).Cannot()) == 0 {
				continue
			}
			refused++
			_, err := e.Apply(context.Background(), n)
			var told *trouble.Error
			check.That(t, errors.As(err, &told) && len(told.Try) > 0 && strings.HasPrefix(told.What, "cannot "), "%s/%s: not a refusal with a fix: %v", m.name, name, err)
			check.That(t, n.Touches() == 0, "%s/%s: refused after %d touches", m.name, name, n.Touches())
		}
	}

	check.That(t, refused >= 4, "only %d refusals: the law was hardly tested", refused)
}

// Law 2: wants and To are pure, and making twice is making once.
func TestWantsArePure(t *testing.T) {
	ctx := context.Background()
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		n, eng := m.boot(t), e()
		f := must.Get(eng.Facts(ctx, n))(t)
		for _, st := range eng.Stages {
			wants := must.Get(st.Wants(eng.Spec, f))(t)
			again, err := st.Wants(eng.Spec, f)
			must.That(t, err == nil && len(wants) == len(again), "%s wants %d things, then %d, %v", st.Name, len(wants), len(again), err)
			for i, w := range wants {
				found, err := w.Look(ctx, n)
				if errors.As(err, &host.Later{}) {
					continue
				} else if err != nil {
					t.Fatal(err)
				}

				must.Get(again[i].Look(ctx, n))(t)
				one, err1 := w.To(found)
				other, err2 := again[i].To(found)
				twice, err3 := w.To(one)
				if fmt.Sprint(err1) == fmt.Sprint(err2) && errors.As(err1, &host.Later{}) {
					continue
				}
				check.That(t, err1 == nil && err2 == nil && err3 == nil && one == other && one == twice,
					"%s: To gives %q, then %q, and of itself %q; %v %v %v", w.Ref().Name, one, other, twice, err1, err2, err3)
			}
		}
	})
}

// Laws 2 and 6: an apply makes what was planned and the next has nothing to do; undo ends in the
// first tree.
func TestApplyThenNothingThenUndo(t *testing.T) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		n := m.boot(t)
		first := tree(n)
		planned := plan(t, n, e())
		res := apply(t, n, e())
		for i, c := range planned.Changes { // what has waited for an earlier change of the run alone has come
			if slices.ContainsFunc(res.Made, func(m converge.Change) bool { return m.Kind == c.Kind && m.Name == c.Name }) {
				planned.Changes[i].Deferred = ""
			}
		}

		got, want := names(res.Made), namesNow(planned.Changes)
		check.That(t, got == want, "made\n%s\nplanned\n%s", got, want)
		p := plan(t, n, e())
		check.That(t, p.Now() <= 0, "after apply, still planned:\n%s", namesNow(p.Changes))
		touches := n.Touches()
		res = apply(t, n, e())
		check.That(t, res.Run == "" && n.Touches() == touches, "a second apply touched %d times: %s", n.Touches()-touches, names(res.Made))
		undo(t, n, e(), "")
		check.None(t, cmp.Diff(first, tree(n)), "after undo (-first +now):")
		s := n.Units()
		check.That(t, !strings.Contains(s, "stale") || strings.Contains(first, "stale"), "after undo a daemon runs with other files than there are:\n%s", s)
	})
}

// names lists changes, a line each.
func names(changes []converge.Change) string {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintln(&b, c)
	}
	return b.String()
}

// namesNow lists the changes of a plan that wait for nothing, and whose things could be read.
func namesNow(lines []converge.Line) string {
	var now []converge.Change
	for _, l := range lines {
		if l.Deferred == "" && l.Unknown == "" {
			now = append(now, l.Change)
		}
	}

	return names(now)
}

// Law 6: a failure at any touch rolls its stage back, and the next apply makes it.
func TestFailureAtEveryTouchIsTurnedBack(t *testing.T) {
	ctx := context.Background()
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		whole := m.boot(t)
		before := map[string]string{"": tree(whole)} // each stage, and those that it proves
		for i, st := range e().Stages {
			before[st.Name] = tree(whole)
			if st.Verifies != "" {
				before[st.Name] = before[st.Verifies]
			}
			stage := e()
			stage.Stages = stage.Stages[:i+1]
			apply(t, whole, stage)
		}

		whole = m.boot(t)
		apply(t, whole, e())
		applied, made := tree(whole), whole.Touches()
		for _, at := range sample(t, made, 6) {
			n := m.boot(t)
			n.Fail(at, syscall.ENOSPC)
			res, err := e().Apply(ctx, n)
			if err == nil {
				continue // a touch that may fail: sweeping up
			}
			if tree(n) != applied { // only the record of the end failed
				compare(t, fmt.Sprintf("no space at touch %d: %v", at, err), before[res.Stage], tree(n))
			}
			apply(t, n, e())
			compare(t, fmt.Sprintf("no space at touch %d, applied again", at), applied, tree(n))
			clean(t, fmt.Sprintf("no space at touch %d, applied again", at), n)
		}
	})
}

// section is the section a spec begins with.
func section(text string) string {
	name, _, _ := strings.Cut(strings.TrimLeft(text, "["), "]")
	name, _, _ = strings.Cut(name, ".")
	return name
}

// Law 9: apply(A) then apply(B) ends as apply(B) on a fresh machine; undo of all in the first tree.
// A section that is removed releases what it made.
func TestShrinkingSpecs(t *testing.T) {
	for _, m := range machines(t) {
		possible := map[string]bool{}
		for name, text := range sections {
			possible[name] = len(plan(t, m.boot(t), engine(t, text)).Cannot()) == 0
		}
		for a, textA := range sections {
			for b, textB := range sections {
				if section(textA) != section(textB) && textB != "" {
					continue // one section is released, the other made: both have tests of their own
				}
				if !possible[a] || !possible[b] {
					continue
				}
				t.Run(m.name+"/"+a+"-"+b, func(t *testing.T) {
					t.Parallel()
					n, fresh := m.boot(t), m.boot(t)
					first := tree(n)
					apply(t, n, engine(t, textA))
					want := tree(n) // released
					if textB != "" {
						apply(t, fresh, engine(t, textB))
						want = tree(fresh)
					}
					apply(t, n, engine(t, textB))
					compare(t, "applied one after the other", want, tree(n))
					undo(t, n, engine(t, textB), "all")
					compare(t, "undone", first, tree(n))
				})
			}
		}
	}
}

// Law 10: after undo unattended applies are held until an apply by hand.
func TestHold(t *testing.T) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		n := m.boot(t)
		if apply(t, n, e()).Run == "" {
			return
		}
		applied := tree(n)
		undo(t, n, e(), "")
		unattended := e()
		unattended.Unattended = true
		touches := n.Touches()
		res := apply(t, n, unattended)
		must.That(t, res.Held != "" && n.Touches() == touches, "not held: %+v, %d touches", res, n.Touches()-touches)
		apply(t, n, e())
		compare(t, "applied by hand", applied, tree(n))
		check.That(t, apply(t, n, unattended).Held == "", "still held after an apply by hand")
	})
}

// A run that goes on with an unfinished one carries its id; a run without changes is none.
func TestRunIDs(t *testing.T) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		whole := m.boot(t)
		if apply(t, whole, e()).Run == "" {
			return
		}
		n := m.boot(t)
		n.CutAt(whole.Touches() - 5)
		cut, err := e().Apply(context.Background(), n)
		must.That(t, err != nil, "not cut")
		n.Boot(simhost.LoseAll)
		res := apply(t, n, e())
		j := must.Get(converge.ReadJournal(n), error(nil))(t)
		runs := j.Runs()
		check.That(t, len(runs) == 1 && (res.Run == "" || res.Run == cut.Run), "%d runs, %q then %q", len(runs), cut.Run, res.Run)
	})
}

// One writer: a second run is refused, and says who is at work.
func TestOneWriter(t *testing.T) {
	m := machines(t)[0]
	n := m.boot(t)
	unlock := must.Get(n.Lock())(t)
	defer unlock()
	var busy *host.Busy
	_, err := engine(t, sections["handler"]).Apply(context.Background(), n)
	check.That(t, errors.As(err, &busy), "a second run was let in: %v", err)
	_, err = engine(t, sections["handler"]).Undo(context.Background(), n, "", nil)
	check.That(t, errors.As(err, &busy), "an undo beside a run was let in: %v", err)
	plan(t, n, engine(t, sections["handler"])) // looking is free
}

// An image and its first boot end as an apply on the live machine from the start, also where its
// programs ran in it.
func TestBakeThenBootIsLive(t *testing.T) {
	t.Run("files", func(t *testing.T) { bakeThenBoot(t, (*simhost.Node).Image) })
	t.Run("programs", func(t *testing.T) { bakeThenBoot(t, (*simhost.Node).Bake) })
}

func bakeThenBoot(t *testing.T, off func(*simhost.Node)) {
	each(t, func(t *testing.T, m machine, e func() *converge.Engine) {
		live := m.boot(t)
		if !live.Live() {
			return
		}
		baked := m.boot(t)
		off(baked)
		if version(t, live) != version(t, baked) {
			return // it could be asked for by running the binary only, and an image runs nothing
		}
		apply(t, live, e())
		apply(t, baked, e())
		baked.FirstBoot()
		for _, c := range plan(t, baked, e()).Changes {
			here := e().Spec.Has("node") && labelled(c)                          // labels say what GPUs a machine has
			if c.Kind != "mig" && c.Deferred == "" && c.Unknown == "" && !here { // a GPU is not partitioned in an image
				t.Errorf("after the first boot, still planned: %s", c)
			}
		}

		apply(t, baked, e()) // the boot unit's
		compare(t, "partitions", partitions(live), partitions(baked))
		skip := []string{converge.Home, "/run", "/proc", "/sys"}
		compare(t, "baked and booted", live.Tree(skip...), baked.Tree(skip...))
	})
}

// labelled says whether a change is of what kubelet takes the labels from.
func labelled(c converge.Line) bool {
	return c.Name == "/etc/default/kubelet" || strings.HasSuffix(c.Name, "/zz-gpuadm.yaml") || c.Kind == "restart" && (strings.HasPrefix(c.Name, "k3s") || strings.HasPrefix(c.Name, "rke2"))
}

func version(t *testing.T, n *simhost.Node) string {
	t.Helper()
	f := must.Get(facts.Gather(context.Background(), n, facts.Needs{}))(t)
	var all string
	for _, e := range f.Engines {
		all += e.Name + " " + e.Version + "\n"
	}
	return all
}

// Facts hold still: what a plan says of the machine does not depend on when it is asked.
func TestFactsAreStable(t *testing.T) {
	for _, m := range machines(t) {
		n := m.boot(t)
		a, err1 := facts.Gather(context.Background(), n, facts.Needs{})
		b, err2 := facts.Gather(context.Background(), n, facts.Needs{})
		check.That(t, err1 == nil && err2 == nil && reflect.DeepEqual(a, b), "%s: facts differ from one look to the next: %v %v", m.name, err1, err2)
	}
}

// A daemon that does not come back with what we wrote gets its old files and runs again.
func TestDaemonThatDiesIsRestored(t *testing.T) {
	tested := 0
	for _, m := range machines(t) {
		dies := machine{m.name, []byte(strings.ReplaceAll(string(m.archive), "\nreads = [", "\nrefuses = \"nvidia-container-runtime\"\nreads = ["))}
		n, err := simhost.New(dies.archive)
		if err != nil {
			continue // it has the handler already
		}
		e := engine(t, sections["default"])
		n.Reboot() // whatever is enabled runs
		first := tree(n)
		p := plan(t, n, e)
		if len(p.Cannot()) > 0 || p.Now() == 0 || !strings.Contains(first, "containerd.service enabled active fresh") {
			continue
		}
		tested++
		_, err = e.Apply(context.Background(), n)
		var told *trouble.Error
		check.That(t, errors.As(err, &told) && len(told.Undone) > 0 && len(told.Try) > 0, "%s: %v", m.name, err)
		compare(t, m.name+": after the daemon died", first, tree(n))
	}

	check.That(t, tested >= 3, "only %d machines tested", tested)
}

// Law 2 for what needs a network to be read: wants are pure, of every machine, and To is idempotent
// from whatever is found.
func TestNodeWantsArePure(t *testing.T) {
	const node = "[node]\nlabels = { \"example.com/pool\" = \"h200\" }\ntaints = [\"nvidia.com/gpu=present:NoSchedule\"]\n"
	tested := 0
	for _, m := range machines(t) {
		for name, text := range map[string]string{"node": node, "auto": node + "[join]\nmethod = \"auto\"\n"} {
			n, spec := m.boot(t), engine(t, text).Spec
			f := must.Get(facts.Gather(t.Context(), n, facts.Needs{Files: []string{"/proc/swaps", "/etc/resolv.conf"}}))(t)
			for _, st := range stages.Sequence() {
				wants, err1 := st.Wants(spec, f)
				again, err2 := st.Wants(spec, f)
				must.That(t, len(wants) == len(again) && fmt.Sprint(err1) == fmt.Sprint(err2),
					"%s/%s: %s wants %d things, then %d; %v, then %v", m.name, name, st.Name, len(wants), len(again), err1, err2)
				for i, w := range wants {
					o := again[i]
					check.That(t, w.Ref().Kind == o.Ref().Kind && w.Ref().Name == o.Ref().Name && w.Why == o.Why && w.Keeps == o.Keeps,
						"%s/%s: %s wants %s %s, then %s %s", m.name, name, st.Name, w.Ref().Kind, w.Ref().Name, o.Ref().Kind, o.Ref().Name)
					found, err := w.Look(t.Context(), n)
					if err != nil {
						continue // there is no cluster
					}
					one, err := w.To(found)
					if err != nil {
						continue
					}
					tested++
					twice, err := w.To(one)
					check.That(t, err == nil && twice == one, "%s/%s: %s %s: To gives %q, and of itself %q, %v", m.name, name, w.Ref().Kind, w.Ref().Name, one, twice, err)
				}
			}
		}
	}

	check.That(t, tested >= 100, "only %d things were tested", tested)
}
