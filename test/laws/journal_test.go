// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// The journal serves undo and ownership. What is wrong with it costs undo, and nothing else: a
// journal that cannot be read counts as an empty one.

// recorded is a machine with a run in its journal, and a wish that only adds to it.
type recorded struct {
	applied      *simhost.Node
	wish, more   wish
	first, again string // the trees before, and with more
	text         []byte
}

func recordedRun(t *testing.T) recorded {
	t.Helper()
	r := recorded{
		wish: wish{text: sections["handler"]},
		more: wish{text: sections["handler"] + labelsA},
	}
	n := recordedAs(t, "ubuntu24-h100").boot(t)
	r.first = n.Tree(converge.Home)
	apply(t, n, r.wish.engine(t))
	r.text, r.applied = written(t, n), n.Clone()
	apply(t, n, r.more.engine(t))
	r.again = tree(n)
	return r
}

// boot is the machine after its run, with another journal.
func (r recorded) boot(t *testing.T, text []byte) *simhost.Node {
	t.Helper()
	n := r.applied.Clone()
	must.OK(t, n.Remove(journal))
	must.OK(t, n.Append(journal, text))
	return n
}

// works holds that all works that the journal is not needed for.
func (r recorded) works(t *testing.T, what string, boot func() *simhost.Node) {
	t.Helper()
	ctx := context.Background()
	n := boot()
	p, err := r.wish.engine(t).Plan(ctx, n.View())
	must.That(t, err == nil && p.Now() <= 0, "%s: no plan with nothing to do: %d changes, %v", what, p.Now(), err)
	p, err = r.more.engine(t).Plan(ctx, n.View())
	must.That(t, err == nil && p.Now() != 0 && len(p.Cannot()) == 0, "%s: no plan: %s, %v", what, namesNow(p.Changes), err)
	s, err := r.wish.engine(t).Pending(ctx, n.View())
	must.That(t, err == nil && s.Now() <= 0, "%s: the gate cannot look: %d changes, %v", what, s.Now(), err)
	_, err = r.wish.engine(t).Status(ctx, n.View())
	must.That(t, err == nil, "%s: no status: %v", what, err)
	for _, unattended := range []bool{true, false} {
		e := r.wish.engine(t)
		e.Unattended = unattended
		res, err := e.Apply(ctx, n)
		must.That(t, err == nil && len(res.Made) == 0, "%s: an apply with nothing to do: made %s, %v", what, names(res.Made), err)
	}

	s, err = r.wish.engine(t).Pending(ctx, n.View())
	must.That(t, err == nil && s.Unfinished == "", "%s: after an apply the gate is closed: unfinished %q, %v", what, s.Unfinished, err)
	changed := boot()
	_, err = r.more.engine(t).Apply(ctx, changed)
	must.That(t, err == nil, "%s: an apply with changes: %v", what, err)
	compare(t, what+", applied", r.again, tree(changed))
	r.undoes(t, what+", undone", boot())
	r.undoes(t, what+", applied and undone", changed)
}

// undoes holds that an undo of what can be read works, or says in one sentence that it cannot.
func (r recorded) undoes(t *testing.T, what string, n *simhost.Node) {
	t.Helper()
	ctx, damaged := context.Background(), len(converge.ReadJournal(n).Damaged) > 0
	undid, err := r.more.engine(t).Undo(ctx, n, "all", nil)
	oneSentence(t, what, err)
	must.That(t, damaged == (len(undid.Damaged) > 0), "%s: it does not say that it may not know all changes", what)
	clean(t, what, n)
	if err == nil || !strings.Contains(err.Error(), hologram) {
		return
	}
	res, err := r.more.engine(t).Undo(ctx, n, "all", []string{hologram}) // as its advice says
	must.That(t, err == nil && len(res.Left) == 1 && strings.Contains(res.Left[0].Cannot, "does not know the kind"),
		"%s, and %s left: left %s, %v", what, hologram, namesNow(res.Left), err)
	compare(t, what+", the rest undone", r.first, n.Tree(converge.Home))
}

// hologram is a thing of a kind that this gpuadm does not know.
const hologram = "hologram x"

func oneSentence(t *testing.T, what string, err error) {
	t.Helper()
	told := (*trouble.Error)(nil)
	must.That(t, err == nil || (errors.As(err, &told) && !strings.Contains(err.Error(), "\n") && len(err.Error()) <= 400), "%s: no one sentence: %v", what, err)
}

// newer finds a record of a format that this gpuadm does not know.
func newer(text []byte) bool {
	for _, m := range regexp.MustCompile(`"format":(\d+)`).FindAllSubmatch(text, -1) {
		if format, err := strconv.Atoi(string(m[1])); err != nil || format > converge.JournalFormat {
			return true
		}
	}
	return false
}

// Most flipped bits make a line unreadable: what follows is judged once for all bits after which a
// journal says the same.
func TestFlippedBitInTheJournal(t *testing.T) {
	r, judged := recordedRun(t), map[string]bool{}
	for _, at := range append(sample(t, 8*len(r.text), 400), 8*bytes.Index(r.text, []byte(`"before"`))+22) {
		flipped := bytes.Clone(r.text)
		flipped[at/8] ^= 1 << (at % 8)
		says := string(must.Get(json.Marshal(converge.ParseJournal(flipped)))(t))
		if judged[says] || newer(flipped) {
			continue // TestNewerJournal
		}
		judged[says] = true
		t.Run(fmt.Sprintf("bit %d of byte %d", at%8, at/8), func(t *testing.T) {
			t.Parallel()
			r.works(t, "flipped", func() *simhost.Node { return r.boot(t, flipped) })
		})
	}
}

func TestJournalThatSaysLittle(t *testing.T) {
	r := recordedRun(t)
	line := func(text string) []byte { return append([]byte(text), '\n') }
	unknown := line(`{"format":1,"what":"begin","run":"20260102T030405Z-9","time":"2026-01-02T03:04:05Z"}`)
	unknown = append(unknown, line(`{"format":1,"what":"make","run":"20260102T030405Z-9","time":"2026-01-02T03:04:05Z","change":{"stage":"runtime","kind":"hologram","name":"x","before":"","after":"on"}}`)...)
	closed := append(bytes.Clone(unknown), line(`{"format":1,"what":"end","run":"20260102T030405Z-9","time":"2026-01-02T03:04:05Z","result":"ok"}`)...)
	garbage := append(bytes.Repeat([]byte("no record at all "), 60), '\n')
	for name, text := range map[string][]byte{
		"empty":                       {},
		"an unknown kind":             append(bytes.Clone(r.text), closed...),
		"an unknown kind, unfinished": append(bytes.Clone(r.text), unknown...),
		"an unknown record":           append(bytes.Clone(r.text), line(`{"format":1,"what":"dance","run":"20260102T030405Z-9","time":"2026-01-02T03:04:05Z"}`)...),
		"garbage at first":            append(bytes.Clone(garbage), r.text...),
		"garbage at last":             append(bytes.Clone(r.text), garbage...),
		"zeros":                       make([]byte, 1<<16),
		"its first half":              r.text[:len(r.text)/2],
		"its second half":             r.text[len(r.text)/2:],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r.works(t, name, func() *simhost.Node { return r.boot(t, text) })
		})
	}

	t.Run("a folder", func(t *testing.T) {
		t.Parallel()
		r.works(t, "a folder", func() *simhost.Node {
			n := r.boot(t, nil)
			must.OK(t, errors.Join(n.Remove(journal), n.Mkdir(journal, host.Attr{Mode: 0o700})))
			return n
		})
	})
}

// A journal of garbage, larger than what is read into memory.
func TestHugeJournal(t *testing.T) {
	if testing.Short() {
		t.Skip("100 MiB under the race detector")
	}
	r := recordedRun(t)
	block := append(bytes.Repeat([]byte("no record at all "), 4000), '\n')
	huge := bytes.Repeat(block, 100<<20/len(block)+1)
	r.works(t, "100 MiB of garbage", func() *simhost.Node { return r.boot(t, huge) })
}

// What a newer gpuadm has written is not written to: an apply with changes and an undo refuse in
// one sentence. All that only looks works, and so does an apply with nothing to do.
func TestNewerJournal(t *testing.T) {
	ctx := context.Background()
	r := recordedRun(t)
	next := append(bytes.Clone(r.text), `{"format":2,"what":"begin","run":"x"}`+"\n"...)
	for name, text := range map[string][]byte{
		"at last": next, "alone": next[len(r.text):], "at first": append(next[len(r.text):len(next):len(next)], r.text...),
	} {
		n := r.boot(t, text)
		touches := n.Touches()
		if p, err := r.more.engine(t).Plan(ctx, n.View()); err != nil || p.Now() == 0 {
			t.Errorf("%s: no plan: %d changes, %v", name, p.Now(), err)
		}
		if s, err := r.wish.engine(t).Pending(ctx, n.View()); err != nil || s.Now() > 0 || s.Unfinished != "" {
			t.Errorf("%s: the gate cannot look: %d changes, unfinished %q, %v", name, s.Now(), s.Unfinished, err)
		}
		if res, err := r.wish.engine(t).Apply(ctx, n); err != nil || len(res.Made) > 0 {
			t.Errorf("%s: an apply with nothing to do: made %s, %v", name, names(res.Made), err)
		}
		_, err := r.more.engine(t).Apply(ctx, n)
		check.That(t, err != nil, "%s: an apply with changes writes to it", name)
		oneSentence(t, name+": an apply with changes", err)
		_, err = r.more.engine(t).Undo(ctx, n, "all", nil)
		check.That(t, err != nil, "%s: an undo writes to it", name)
		oneSentence(t, name+": an undo", err)
		check.That(t, n.Touches() == touches && bytes.Equal(written(t, n), text), "%s: %d touches", name, n.Touches()-touches)
	}
}

// Attempts that change nothing are not runs: a boot loop does not fill the journal, and undo is of
// what changed something.
func TestAttemptsThatChangeNothingAreNoRuns(t *testing.T) {
	const most = 64 << 10
	attempts := 1000 / check.Every(5)
	if testing.Short() {
		attempts = 100
	}
	bad := true
	failing := func(t *testing.T) *converge.Engine { return proving(t, &bad) }
	refused := func(t *testing.T) *converge.Engine {
		cannot := things.Check("never", func(context.Context, host.View) (string, error) {
			return "cannot do it: it is never so", nil
		}, "", "nothing helps")
		return engineOf(t, stage(things.Exact("/srv/one", []byte("ours\n"), 0o644, ""), cannot))
	}

	wants := func(t *testing.T) *converge.Engine {
		return engineOf(t, named("driver", things.Exact("/srv/kept", []byte("kept\n"), 0o644, "")))
	}
	for name, try := range map[string]func(*testing.T) *converge.Engine{"failed and rolled back": failing, "refused": refused} {
		t.Run(name, func(t *testing.T) {
			n := node(t)
			first := n.Tree(converge.Home)
			kept := apply(t, n, wants(t))
			before := n.Tree(converge.Home)
			for i := range attempts {
				_, err := try(t).Apply(context.Background(), n)
				must.That(t, err != nil, "it was applied")
				if i%100 == 0 {
					compare(t, "attempted", before, n.Tree(converge.Home))
				}
				info, err := n.Stat(journal)
				must.That(t, err == nil && info.Size <= 2*most, "after %d attempts the journal has %d bytes, %v", i+1, info.Size, err)
			}

			apply(t, n, edition(t, 1))
			info, err := n.Stat(journal)
			check.That(t, err == nil && info.Size <= most, "after %d attempts and a run the journal has %d bytes, %v", attempts, info.Size, err)
			undo(t, n, edition(t, 1), "")
			compare(t, "the last run undone", before, n.Tree(converge.Home))
			for range 3 {
				_, err := try(t).Apply(context.Background(), n)
				must.That(t, err != nil, "it was applied")
			}

			p, err := wants(t).PlanUndo(context.Background(), n, "", nil)
			check.That(t, err == nil && len(p.Runs) == 1 && p.Runs[0] == kept.Run, "undo would undo %v, not %s, which alone has changed something; %v", p.Runs, kept.Run, err)
			res := undo(t, n, wants(t), "")
			check.That(t, len(res.Made) == 1, "undo has undone %s", names(res.Made))
			compare(t, "all undone", first, n.Tree(converge.Home))
		})
	}
}

const journal = converge.Home + "/journal.jsonl"

// written is the journal's bytes.
func written(t *testing.T, n *simhost.Node) []byte {
	t.Helper()
	data := must.Get(n.ReadFile(journal))(t)
	return data
}

// saying has an engine note what it tells of its journal.
func saying(e *converge.Engine) (*converge.Engine, *[]string) {
	var warnings []string
	e.Tell = func(ev converge.Event) {
		if ev.What == converge.Remains || ev.What == converge.Healed || ev.What == converge.Damaged {
			warnings = append(warnings, ev.Text)
		}
	}

	return e, &warnings
}

// A power cut tears the last line, in one way or another. The next run says so once and ignores the
// line from then on: gpuadm still knows what it changed, nothing refuses, undo undoes all, and what
// no undo needs is cleared away.
func TestTornLastLineIsHealed(t *testing.T) {
	next := `{"format":1,"what":"make","run":"20260102T030405Z","time":"2026-01-02T03:04:05Z","change":{"stage":"driver","kind":"file","name":"/srv/a","before":"","after":"0644 0:0 ` + strings.Repeat("ab", 32) + ` 3"}}`
	for name, torn := range map[string]string{
		"one byte": next[:1], "half": next[:len(next)/2], "half, and zeros": next[:30] + strings.Repeat("\x00", 50),
		"zeros": strings.Repeat("\x00", 80), "zeros first": strings.Repeat("\x00", 40) + next[40:], "garbage": "\xff\xfe\x01",
	} {
		n := node(t)
		first := n.Tree(converge.Home)
		apply(t, n, edition(t, 1))
		apply(t, n, edition(t, 2))
		whole := written(t, n)
		put(t, n, journal, string(whole)+torn)
		s, err := edition(t, 2).Status(t.Context(), n.View())
		check.That(t, err == nil && s.Torn == bytes.Count(whole, []byte("\n"))+1 && len(s.Damaged) == 0, "%s: torn %v, damaged %v, %v", name, s.Torn, s.Damaged, err)
		for try := range 2 {
			e, warnings := saying(edition(t, 2))
			res := apply(t, n, e)
			check.That(t, len(res.Made) == 0, "%s: made %v", name, res.Made)
			check.That(t, len(*warnings) == 1-try, "%s: try %d says %q", name, try, *warnings)
		}

		s, err = edition(t, 2).Status(t.Context(), n.View())
		check.That(t, err == nil && s.Torn == 0 && len(s.Damaged) == 0 && s.Unfinished == "",
			"%s: healed, and torn %v, damaged %v, unfinished %q, %v", name, s.Torn, s.Damaged, s.Unfinished, err)
		check.That(t, bytes.HasPrefix(written(t, n), whole), "%s: the lines before it have changed", name)
		undo(t, n, edition(t, 2), "all")
		compare(t, name+", undone", first, n.Tree(converge.Home))
		left := blobs(n)
		check.That(t, left <= 0, "%s: %d unneeded blobs are kept", name, left)
	}
}

// An undo heals it too, and so does a disk that is too full for its record, once there is room.
func TestTornLineOnAFullDisk(t *testing.T) {
	n := node(t)
	apply(t, n, edition(t, 1))
	put(t, n, journal, string(written(t, n))+`{"format":1,"wh`)
	n.Fail(n.Touches(), syscall.ENOSPC)
	e, warnings := saying(edition(t, 1))
	if apply(t, n, e); len(*warnings) != 1 {
		t.Errorf("said %q", *warnings)
	}
	undo(t, n, edition(t, 1), "")
	s, err := edition(t, 1).Status(t.Context(), n.View())
	check.That(t, err == nil && s.Torn+len(s.Damaged) == 0, "torn %v, damaged %v, %v", s.Torn, s.Damaged, err)
	left := blobs(n)
	check.That(t, left <= 0, "%d unneeded blobs are kept", left)
}

// Power may fail again while that is repaired, at any touch.
func TestTornWhileHealing(t *testing.T) {
	cuts := 0
	for cut := range 12 {
		n := node(t)
		apply(t, n, edition(t, 1))
		put(t, n, journal, string(written(t, n))+"\xff\xfe garbage")
		n.CutAt(n.Touches() + cut)
		e, _ := saying(edition(t, 2))
		if _, err := e.Apply(t.Context(), n); err != nil {
			cuts++
		}
		n.Boot(simhost.Loss(cut))
		apply(t, n, edition(t, 2))
		if s, err := e.Status(t.Context(), n.View()); err != nil || s.Torn+len(s.Damaged) != 0 {
			t.Errorf("cut at %d: torn %v, damaged %v, %v:\n%s", cut, s.Torn, s.Damaged, err, written(t, n))
		}
	}

	check.That(t, cuts >= 6, "power failed %d times only", cuts)
}

// A line that a full disk has cut short in the middle of a run is no news: nothing was touched
// under it.
func TestLineCutShortInTheMiddle(t *testing.T) {
	n := node(t)
	apply(t, n, edition(t, 1))
	lines := bytes.SplitAfter(written(t, n), []byte("\n"))
	put(t, n, journal, string(lines[0])+string(lines[1][:len(lines[1])/3])+"\n"+string(bytes.Join(lines[1:], nil)))
	e, warnings := saying(edition(t, 2))
	apply(t, n, e)
	s, err := e.Status(t.Context(), n.View())
	check.That(t, err == nil && s.Torn+len(s.Damaged) == 0 && len(*warnings) == 0, "torn %v, damaged %v, %v, said %q", s.Torn, s.Damaged, err, *warnings)
	if undo(t, n, e, "all"); blobs(n) > 0 {
		t.Errorf("%d unneeded blobs are kept", blobs(n))
	}
}

// Garbage in the middle refuses nothing. All that is kept stays, since what that line said may need
// it; each run and status name the file, the line, and what to do, which helps.
func TestDamagedJournal(t *testing.T) {
	n := node(t)
	apply(t, n, edition(t, 1))
	apply(t, n, edition(t, 2))
	lines := bytes.SplitAfter(written(t, n), []byte("\n"))
	broken := append([][]byte{lines[0], []byte("gar\x00bage}\n")}, lines[1:]...)
	put(t, n, journal, string(bytes.Join(broken, nil)))
	had := blobs(n)
	for range 2 {
		e, warnings := saying(edition(t, 2))
		apply(t, n, e)
		check.That(t, len(*warnings) == 1 && strings.Contains((*warnings)[0], "cannot read these lines of "+journal+": 2: "), "said %q", *warnings)
	}

	s, err := edition(t, 2).Status(t.Context(), n.View())
	check.That(t, err == nil && len(s.Damaged) == 1 && s.Damaged[0] == 2 && s.Torn == 0, "torn %v, damaged %v, %v", s.Torn, s.Damaged, err)
	undo(t, n, edition(t, 2), "all")
	left := blobs(n)
	check.That(t, left == had && had != 0, "%d blobs of %d are left", left, had)
	lines = bytes.SplitAfter(written(t, n), []byte("\n"))
	put(t, n, journal, string(bytes.Join(append(lines[:1:1], lines[2:]...), nil)))
	e, warnings := saying(edition(t, 2))
	if apply(t, n, e); len(*warnings) != 0 {
		t.Errorf("repaired, and it says %q", *warnings)
	}
	if undo(t, n, e, "all"); blobs(n) > 0 {
		t.Errorf("%d unneeded blobs are kept", blobs(n))
	}
}
