// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A nightRing is one command of the night. A failure does not end the night.
type nightRing struct {
	name    string
	env     []string
	command []string
	// tests says that the command is go test, whose events are kept to name what failed.
	tests bool
	// parts is how many nights the ring is divided over; 0 = a night runs all of it.
	parts int
	// hosts says that the tests boot hosts, and take hours: a ring that was cut short goes on with
	// the tests that have not ended.
	hosts bool
}

const labTests = `Test(Lab|Slow|Bench|VM|Metal)([A-Z(]|$)`

// longest are the packages that go test begins with: those that begin last would run alone.
var longest = []string{"./test/laws", "./test/containerd", "./internal/packages/apt", "./cmd/gpuadm"}

// The number of nights in which a ring runs once at every touch or call. All three as a whole take
// a day of two cores, in 2026-11: of a bake's 1,875 touches a 48th took 25 minutes at load 15, and
// the 3,410 injections took 97 minutes.
const (
	crashParts  = 48
	lawsParts   = 6
	injectParts = 7 // odd: by turns, an injection has one error or the other
)

func nightRings() []nightRing {
	all := []string{"LAB_ALL=1"}
	test := func(args ...string) []string {
		return append([]string{"go", "test", "-json"}, args...)
	}
	shuffled := func(args ...string) []string {
		flags := []string{"-shuffle=" + turnWord, "-timeout=4h", "-skip=" + labTests}
		return test(slices.Concat(args, flags, longest, []string{"./..."})...)
	}
	target := func(name string, words ...string) nightRing {
		return nightRing{
			name:    name,
			command: append([]string{"make", "--no-print-directory", name}, words...),
		}
	}

	return []nightRing{
		target("check"),
		target("test-modules"),
		target("arm64"),
		{
			name:    "vulncheck",
			command: []string{"sh", "-c", "make --no-print-directory vulndb || exit 75; exec make --no-print-directory vulncheck"},
		},
		{
			name: "shuffle", tests: true, env: []string{"GOGC=400"},
			command: shuffled(),
		},
		{
			// -short takes fewer of what runs in one goroutine, and takes hours here: its rings follow.
			name: "race", tests: true, env: []string{"GOGC=400"},
			command: shuffled("-race", "-short"),
		},
		{
			name: "laws", tests: true, parts: lawsParts, env: all,
			command: test("-timeout=4h", "./test/laws", "-run=TestPowerCutThenAny|TestSharedModulesCut|TestFailureAtEvery|TestForeignEdit|TestRandomHistories|TestHostileRandom|TestFlippedBit|TestShrinkingSpecs|TestAttempts"),
		},
		{
			name: "pairs", tests: true, env: all,
			command: test("-timeout=1h", "./cmd/gpuadm", "-run=TestPairs|TestDrainCut|TestMIGLabelCut"),
		},
		{
			name: "engines", tests: true, env: all,
			command: test("-timeout=1h", "-count=1", "./test/containerd"),
		},
		{
			name: "packagers", tests: true, env: all,
			command: test("-timeout=1h", "-count=1", "./internal/packages/...", "./test/sim/..."),
		},
		{
			name: "inject", tests: true, parts: injectParts, env: []string{"INJECT_ALL=1"},
			command: test("-timeout=3h", "-count=1", "./test/inject", "-run=TestAnyCall"),
		},
		target("lab-hosts"),
		{name: "crio", command: []string{"go", "run", "./test/containerd/parts/fetch", "crio"}},
		target("packages"),
		target("image"), // TestLabImage runs what it makes
		{
			name: "lab", tests: true, hosts: true, env: all,
			command: test("-timeout=150m", "-count=1", "-parallel=3", "./test/lab", "-run=^TestLab", "-skip=^TestLabCrash"),
		},
		target("repro"),
		target("kube-build"),
		{
			name: "lab-kube", tests: true, hosts: true, env: all,
			command: test("-timeout=90m", "-count=1", "-parallel=2", "./test/lab/kube", "-run=^TestLabKube"),
		},
		{
			name: "crash", tests: true, hosts: true, parts: crashParts, env: all,
			command: test("-timeout=300m", "-count=1", "-parallel=3", "./test/lab", "-run=^TestLabCrash"),
		},
	}
}

// turnWord stands in a command for the night's turn, which is the seed of what is shuffled.
const turnWord = "TURN"

// nightly runs the rings that are named, or those that the night on this commit has not run yet, and
// writes one page about all.
func nightly(names []string) error {
	rings, err := named(names)
	if err != nil {
		return err
	}
	commit, err := commitNow()
	if err != nil {
		return err
	}
	book, err := openBook(nightFolder)
	if err != nil {
		return err
	}
	night := book.nightOn(commit)
	if err := book.keepNight(night); err != nil {
		return err
	}

	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	failed := false
	for _, ring := range rings {
		part := book.part(ring, night)
		if len(names) == 0 && book.has(ring, part, night) {
			continue
		}
		r, err := book.run(interrupted, ring, part, night)
		if err != nil {
			return err
		}
		o, err := book.outcome(r)
		if err != nil {
			return err
		}
		fmt.Printf("== %s: %s, %s\n", r.title(), r.word(o), book.took(r).Round(time.Second))
		// After each ring: a night that is cut short leaves the page of what it had.
		if err := book.writePage(night); err != nil {
			return err
		}
		if !r.Ended {
			return fmt.Errorf("%s was cut short; `make nightly` goes on with it", ring.name)
		}
		failed = failed || !r.passed(o)
	}

	page, err := book.page(night)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s\nThis page: %s. Each ring's output: %s.\n", page, pageFile, nightFolder)
	if failed {
		return errors.New("not all rings passed")
	}
	return nil
}

// named returns the rings of these names, or all.
func named(names []string) ([]nightRing, error) {
	all := nightRings()
	if len(names) == 0 {
		return all, nil
	}
	var rings []nightRing
	for _, name := range names {
		i := slices.IndexFunc(all, func(ring nightRing) bool { return ring.name == name })
		if i < 0 {
			return nil, fmt.Errorf("the night has no ring %q", name)
		}
		rings = append(rings, all[i])
	}

	return rings, nil
}

// commitNow names HEAD; a tree with other changes than HEAD's is "1cfd70df and changes".
func commitNow() (string, error) {
	head, err := git("rev-parse", "--short=10", "HEAD")
	if err != nil {
		return "", err
	}
	changes, err := git("status", "--porcelain")
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(head)
	if changes != "" {
		commit += andChanges
	}
	return commit, nil
}

const andChanges = " and changes"

// run runs a ring, or what a run that was cut short left of it, and keeps its record.
func (b *book) run(interrupted context.Context, ring nightRing, part string, n night) (record, error) {
	r, done, err := b.begin(ring, part, n)
	if err != nil {
		return r, err
	}
	log, err := os.OpenFile(b.log(r), os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return r, err
	}
	defer log.Close()

	words := ring.words(r.Turn, done)
	env := ring.environment(r)
	fmt.Printf("== %s: %s %s\n", ring.name, strings.Join(env, " "), strings.Join(words, " "))
	fmt.Fprintf(log, "%s%s\n", runBegins, strings.Join(words, " "))
	command := exec.CommandContext(interrupted, words[0], words[1:]...)
	command.Env = append(os.Environ(), env...)
	command.Stdout = log
	command.Stderr = log
	// The whole group gets the signal: go test does not hand on SIGTERM to its test.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGINT) }
	command.WaitDelay = time.Minute
	err = command.Run()
	isCut := interrupted.Err() != nil
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) && !isCut {
		return r, fmt.Errorf("cannot run %s: %w", words[0], err)
	}
	if isCut {
		// What takes no notice of SIGINT would work on beside the next run.
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		return r, nil
	}

	r.Took += time.Since(r.Began)
	r.Ended = true
	r.Exit = command.ProcessState.ExitCode()
	return r, b.keep(r)
}

// begin keeps the record of a run that begins: should it be killed, the record says that it has not
// ended. done are the tests that ended before the ring was cut short. The log of another run goes
// before its record does: a record is never beside what it does not tell of.
func (b *book) begin(ring nightRing, part string, n night) (r record, done []string, err error) {
	r = record{
		Ring:    ring.name,
		Part:    part,
		Commit:  n.Commit,
		Turn:    n.Turn,
		IsTests: ring.tests,
	}
	before, wasCut := b.cut(ring, part, n)
	if wasCut {
		o, err := b.outcome(before)
		if err != nil {
			return r, nil, err
		}
		done = o.ended
		r = before
		r.Took = b.took(before)
	} else if err := os.WriteFile(b.log(r), nil, 0o644); err != nil {
		return r, nil, err
	}

	r.Began = time.Now().UTC()
	if ring.hosts {
		r.Tests, err = ring.list()
		if err != nil {
			return r, nil, err
		}
	}

	return r, done, b.keep(r)
}

// words is the ring's command; done are the tests that have ended already.
func (ring nightRing) words(turn string, done []string) []string {
	words := slices.Clone(ring.command)
	for i, word := range words {
		words[i] = strings.ReplaceAll(word, turnWord, turn)
	}
	if len(done) == 0 {
		return words
	}

	skip := "^(" + strings.Join(done, "|") + ")$"
	i := slices.IndexFunc(words, func(word string) bool {
		return strings.HasPrefix(word, "-skip=")
	})
	if i < 0 {
		return append(words, "-skip="+skip)
	}
	words[i] += "|" + skip
	return words
}

// environment is what the ring has beside this process's own.
func (ring nightRing) environment(r record) []string {
	env := append(slices.Clone(ring.env), "GPUADM_TURN="+r.Turn)
	if r.Part != "" {
		env = append(env, "GPUADM_PART="+r.Part)
	}
	return env
}

// list asks go test for the tests that the ring has. What -list matches is -run's, without -skip.
func (ring nightRing) list() ([]string, error) {
	run, skip := "", "^$"
	folder := ""
	for _, word := range ring.command {
		switch name, value, _ := strings.Cut(word, "="); {
		case name == "-run":
			run = value
		case name == "-skip":
			skip = value
		case strings.HasPrefix(word, "./"):
			folder = word
		}
	}

	left, err := regexp.Compile(skip)
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("go", "test", "-list="+run, folder).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil, nil // it does not build, which the run says
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the tests of %s: %w", filepath.Clean(folder), err)
	}
	var tests []string
	for line := range strings.Lines(string(out)) {
		name := strings.TrimSpace(line)
		if strings.HasPrefix(name, "Test") && !left.MatchString(name) {
			tests = append(tests, name)
		}
	}

	return tests, nil
}
