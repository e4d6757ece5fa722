// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func newBook(t *testing.T) *book {
	t.Helper()
	return must.Get(openBook(filepath.Join(t.TempDir(), "nightly")))(t)
}

// logged keeps a record and its log.
func (b *book) logged(t *testing.T, r record, lines ...string) {
	t.Helper()
	must.OK(t, b.keep(r))
	text := runBegins + "go test\n" + strings.Join(lines, "\n") + "\n"
	must.OK(t, os.WriteFile(b.log(r), []byte(text), 0o644))
}

// says is a line of go test -json.
func says(action, folder, test string) string {
	return fmt.Sprintf(`{"Action":%q,"Package":%q,"Test":%q}`, action, module+"/"+folder, test)
}

// TestNightPage: the page has each ring's last run with its commit, date, time, failures, skips and
// seed, and names the rings that have not run on this commit.
func TestNightPage(t *testing.T) {
	b := newBook(t)
	n := night{Commit: "aaaa", Turn: "7"}
	began := time.Date(2026, 11, 28, 23, 10, 0, 0, time.UTC)
	here := func(ring string) record {
		return record{
			Ring:   ring,
			Commit: "aaaa",
			Turn:   "7",
			Began:  began,
			Ended:  true,
		}
	}

	race := here("race")
	race.IsTests = true
	race.Took = 90 * time.Second
	race.Exit = 1
	b.logged(
		t, race,
		says("pass", "mig", "TestFit"),
		says("fail", "mig", "TestPlan/one"),
		says("fail", "mig", "TestPlan"),
		says("fail", "mig", "TestPlanned"),
		`{"Action":"fail","Package":"`+module+`/mig"}`,
		`{"Action":"fail","Package":"`+module+`/unbuilt"}`,
		`{"Action":"output","Package":"`+module+`/mig","Test":"TestGPU","Output":"    gpu_test.go:7: no GPU\n"}`,
		says("skip", "mig", "TestGPU"),
		"a line of the compiler",
	)
	older := record{
		Ring:    "lab",
		IsTests: true,
		Commit:  "bbbb",
		Turn:    "6",
		Began:   began,
		Ended:   true,
	}
	older.Tests = []string{"TestLabOne", "TestLabTwo"}
	b.logged(t, older, says("pass", "test/lab", "TestLabOne"))
	repro := here("repro")
	repro.Exit = 2
	b.logged(t, repro)
	unreached := here("vulncheck")
	unreached.Exit = 75
	b.logged(t, unreached)
	empty := here("engines")
	empty.IsTests = true
	b.logged(t, empty)
	b.logged(t, here("check"))

	page := must.Get(b.page(n))(t)
	check.Says(
		t, page,
		"# The night of aaaa",
		"Not run to the end on this commit, 16 of 20 rings: test-modules, arm64, vulncheck, shuffle,",
		"kube-build, lab-kube, crash.",
		"crash: this night runs part 8/48. 48 parts have not run to their end yet.",
		"| vulncheck | COULD NOT LOOK | aaaa",
		"| check | passed | aaaa | 2026-11-28 23:10 | 0s | 0 | 0 | 0 | 0 | 7 |",
		"| race | FAILED | aaaa | 2026-11-28 23:10 | 1m30s | 1 | 3 | 1 | 0 | 7 |",
		"| lab | FAILED | bbbb (older) | 2026-11-28 23:10 | 0s | 1 | 0 | 0 | 1 | 6 |",
		"- failed: mig TestPlan/one\n- failed: mig TestPlanned\n- failed: unbuilt\n",
		"- skipped: mig TestGPU: gpu_test.go:7: no GPU",
		"- not run to its end: TestLabTwo",
		"- its command ended with 2: ",
		"- failed: no test ran",
	)
	check.That(t, !strings.Contains(page, "\n## check"), "a ring that passed has details:\n%s", page)
}

// TestNightParts: in as many nights as a ring has parts each part runs once, also if a night comes to
// nothing, and the page counts those that never ran.
func TestNightParts(t *testing.T) {
	b := newBook(t)
	ring := nightRing{name: "crash", parts: 4}
	var parts []string
	for turn := range 6 {
		n := night{Commit: fmt.Sprint("commit", turn), Turn: fmt.Sprint(turn)}
		part := b.part(ring, n)
		r := record{
			Ring:   "crash",
			Part:   part,
			Commit: n.Commit,
			Turn:   n.Turn,
			Began:  time.Unix(int64(turn), 0),
		}
		must.OK(t, b.keep(r))
		check.Equal(t, b.part(ring, n), part, "in the same night the part is")
		if turn == 1 {
			continue // this night is cut short, and never goes on
		}
		r.Ended = true
		must.OK(t, b.keep(r))
		parts = append(parts, part)
	}

	check.List(t, parts, []string{"1/4", "3/4", "4/4", "2/4", "1/4"}, "the nights run")
	check.Equal(t, b.partsText(ring, night{Turn: "9"}), "crash: this night runs part 3/4.", "the page says")
}

// TestNightTurns: a night on one commit goes on, with its turn, until all rings have run; then the
// next begins.
func TestNightTurns(t *testing.T) {
	t.Setenv("GPUADM_TURN", "")
	b := newBook(t)
	first := b.nightOn("aaaa")
	must.OK(t, b.keepNight(first))
	check.Equal(t, b.nightOn("aaaa"), first, "the night that has run nothing is")

	next := b.nightOn("bbbb")
	check.That(t, next.Turn != first.Turn, "another commit has the same turn")

	for _, ring := range nightRings() {
		r := record{
			Ring:   ring.name,
			Part:   b.part(ring, first),
			Commit: first.Commit,
			Turn:   first.Turn,
		}
		r.Ended = true
		must.OK(t, b.keep(r))
	}

	again := must.Get(openBook(b.folder))(t)
	check.That(t, again.complete(first), "the night is not complete: %v", again.records)
	check.Equal(t, again.nightOn("aaaa"), night{
		Commit: "aaaa",
		Turn:   next.Turn,
	}, "the next night is")

	changed := night{Commit: "aaaa" + andChanges, Turn: "1"}
	must.OK(t, b.keepNight(changed))
	check.Equal(t, b.nightOn(changed.Commit).Turn, "2", "the turn of a tree with changes is")
}

// TestNightGoesOn: a ring that is cut short while a test runs goes on with that test. What has ended
// does not run again, and counts.
func TestNightGoesOn(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	must.OK(t, os.WriteFile("go.mod", []byte("module example.com/slow\n\ngo 1.24\n"), 0o644))
	must.OK(t, os.WriteFile("slow_test.go", []byte(slowTests), 0o644))
	b := newBook(t)
	n := night{Commit: "aaaa", Turn: "3"}
	ring := nightRing{
		name: "slow", tests: true, hosts: true,
		command: []string{"go", "test", "-json", "-count=1", "./", "-run=^TestSlow", "-skip=^TestSlowNever"},
	}

	ctx, cut := context.WithCancel(t.Context())
	go func() {
		for range time.Tick(10 * time.Millisecond) {
			if _, err := os.Stat("waits"); err == nil || ctx.Err() != nil {
				cut()
				return
			}
		}
	}()
	r := must.Get(b.run(ctx, ring, "", n))(t)
	check.That(t, !r.Ended, "a ring that is cut has ended: %v", r)
	check.List(t, r.Tests, []string{"TestSlowA", "TestSlowB", "TestSlowC"}, "the ring's tests are")
	o := must.Get(b.outcome(r))(t)
	check.Equal(t, r.word(o), "CUT SHORT", "the ring is")
	check.List(t, o.notRun, []string{"TestSlowB", "TestSlowC"}, "not run are")

	must.OK(t, os.WriteFile("go-on", nil, 0o644))
	b = must.Get(openBook(b.folder))(t) // as another process
	r = must.Get(b.run(t.Context(), ring, "", n))(t)
	o = must.Get(b.outcome(r))(t)
	check.Equal(t, r.word(o), "passed", "after the second run the ring is")
	check.Equal(t, o.passed, 3, "passed are")
	ran := strings.Fields(string(must.Get(os.ReadFile("ran"))(t)))
	check.List(t, ran, []string{"TestSlowA", "TestSlowB", "TestSlowB", "TestSlowC"}, "there ran")
	check.That(t, b.has(ring, "", n), "the night has not run it")

	r = must.Get(b.run(t.Context(), ring, "", night{Commit: "bbbb", Turn: "4"}))(t)
	check.Equal(t, must.Get(b.outcome(r))(t).passed, 3, "on another commit there pass")
	ran = strings.Fields(string(must.Get(os.ReadFile("ran"))(t)))
	check.Equal(t, len(ran), 7, "after it there ran %v:", ran)
}

const slowTests = `package slow

import (
	"os"
	"testing"
	"time"
)

func runs(t *testing.T) {
	f, err := os.OpenFile("ran", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(t.Name() + " "); err != nil {
		t.Fatal(err)
	}
}

func TestSlowA(t *testing.T) { runs(t) }

func TestSlowB(t *testing.T) {
	runs(t)
	for {
		if _, err := os.Stat("go-on"); err == nil {
			return
		}
		if err := os.WriteFile("waits", nil, 0o644); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestSlowC(t *testing.T) { runs(t) }

func TestSlowNever(t *testing.T) { t.Fatal("it is skipped") }
`

// TestNightWords: the turn is the seed, the part is in the environment, and what has ended is skipped
// beside what the ring skips.
func TestNightWords(t *testing.T) {
	ring := nightRing{
		name: "x", env: []string{"LAB_ALL=1"},
		command: []string{"go", "test", "-shuffle=" + turnWord, "-skip=^TestLabCrash"},
	}
	plain := []string{"go", "test", "-shuffle=12", "-skip=^TestLabCrash"}
	check.List(t, ring.words("12", nil), plain, "the words are")
	words := ring.words("12", []string{"TestLabA", "TestLabB"})
	check.Equal(t, words[3], "-skip=^TestLabCrash|^(TestLabA|TestLabB)$", "skipped are")
	env := []string{"LAB_ALL=1", "GPUADM_TURN=12", "GPUADM_PART=2/4"}
	check.List(t, ring.environment(record{Turn: "12", Part: "2/4"}), env, "the environment is")

	_, err := named([]string{"lab", "nothing"})
	check.That(t, err != nil && strings.Contains(err.Error(), `"nothing"`), "a ring that is not there: %v", err)
}
