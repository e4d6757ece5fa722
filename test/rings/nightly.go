// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A nightRing is one command of the night. A failure does not end the night.
type nightRing struct {
	name    string
	env     []string
	command []string
	// tests says that the command is go test, whose events are kept to name what failed.
	tests bool
}

const labTests = `Test(Lab|Slow|Bench|VM|Metal)([A-Z(]|$)`

func nightRings() []nightRing {
	all := []string{"LAB_ALL=1"}
	test := func(args ...string) []string { return append([]string{"go", "test"}, args...) }
	target := func(name string, words ...string) nightRing {
		return nightRing{name: name, command: append([]string{"make", "--no-print-directory", name}, words...)}
	}
	return []nightRing{
		target("check"),
		target("test-modules"),
		target("arm64"),
		target("vulncheck"),
		{
			name: "race", tests: true,
			command: test("-race", "-shuffle=on", "-timeout=4h", "-skip="+labTests, "./..."),
		},
		{
			name: "laws", tests: true, env: all,
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
			name: "inject", tests: true, env: []string{"INJECT_ALL=1"},
			command: test("-timeout=3h", "-count=1", "./test/inject", "-run=TestAnyCall"),
		},
		target("lab-hosts"),
		{name: "crio", command: []string{"go", "run", "./test/containerd/parts/fetch", "crio"}},
		target("packages"),
		{
			name: "lab", tests: true, env: all,
			command: test("-timeout=150m", "-count=1", "-parallel=3", "./test/lab", "-run=TestLab", "-skip=TestLabCrash"),
		},
		{
			name: "crash", tests: true, env: all,
			command: test("-timeout=300m", "-count=1", "-parallel=3", "./test/lab", "-run=TestLabCrash"),
		},
		target("image"),
		target("repro"),
		target("kube-build"),
		{
			name: "lab-kube", tests: true, env: all,
			command: test("-timeout=90m", "-count=1", "-parallel=2", "./test/lab/kube", "-run=TestLabKube"),
		},
	}
}

// A nightResult is what one ring came to.
type nightResult struct {
	name   string
	took   time.Duration
	ok     bool
	passed int
	failed []string // package and test
	skips  map[string]string
	seeds  []string // of shuffled packages in which something failed
}

// nightly runs the rings that are named, or all, and writes bin/nightly.md.
func nightly(names []string) error {
	if err := os.MkdirAll("bin/nightly", 0o755); err != nil {
		return err
	}
	var results []nightResult
	for _, ring := range nightRings() {
		if len(names) > 0 && !slices.Contains(names, ring.name) {
			continue
		}
		fmt.Printf("== %s: %s %s\n", ring.name, strings.Join(ring.env, " "), strings.Join(ring.command, " "))
		result, err := ring.run()
		if err != nil {
			return err
		}
		fmt.Printf("== %s: %s, %s\n", ring.name, word(result.ok), result.took.Round(time.Second))
		results = append(results, result)

		// After each ring: a night that is cut short leaves the page of what it had.
		if err := os.WriteFile("bin/nightly.md", []byte(page(results)), 0o644); err != nil {
			return err
		}
	}

	fmt.Printf("\n%s\nThis page: bin/nightly.md. Each ring's output: bin/nightly.\n", page(results))
	if slices.ContainsFunc(results, func(r nightResult) bool { return !r.ok }) {
		return errors.New("not all rings passed")
	}
	return nil
}

func (ring nightRing) run() (nightResult, error) {
	log, err := os.Create(filepath.Join("bin/nightly", ring.name+".log"))
	if err != nil {
		return nightResult{}, err
	}
	defer log.Close()

	words := ring.command
	if ring.tests {
		words = append([]string{"go", "test", "-json"}, words[2:]...)
	}
	command := exec.Command(words[0], words[1:]...)
	command.Env = append(os.Environ(), "GPUADM_TURN="+nightTurn())
	command.Env = append(command.Env, ring.env...)
	var out bytes.Buffer
	command.Stdout = io.MultiWriter(log, &out)
	command.Stderr = log

	began := time.Now()
	err = command.Run()
	result := nightResult{name: ring.name, took: time.Since(began), ok: err == nil, skips: map[string]string{}}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return result, fmt.Errorf("cannot run %s: %w", words[0], err)
	}
	if ring.tests {
		result.read(&out)
	}
	if result.ok && ring.tests && result.passed == 0 {
		result.ok = false
		result.failed = append(result.failed, "no test ran")
	}
	return result, nil
}

// nightTurn is the number of the night: what two tests share, such as the touches on two
// distributions, changes places in the next one.
func nightTurn() string {
	if set := os.Getenv("GPUADM_TURN"); set != "" {
		return set
	}
	return strconv.FormatInt(time.Now().Unix()/(24*60*60), 10)
}

// An event is one line of go test -json.
type event struct{ Action, Package, Test, Output string }

var seed = regexp.MustCompile(`-test\.shuffle (\d+)`)

// read counts what passed, and keeps what failed and which seed its package had. Only tests that
// hold no further tests count.
func (r *nightResult) read(out io.Reader) {
	seeds := map[string]string{}
	said := map[string]string{}
	var failed []event
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		name := strings.TrimPrefix(e.Package, module+"/") + " " + e.Test
		switch e.Action {
		case "output":
			if found := seed.FindStringSubmatch(e.Output); found != nil {
				seeds[e.Package] = found[1]
			}
			if e.Test != "" && !strings.HasPrefix(strings.TrimSpace(e.Output), "---") && !strings.HasPrefix(e.Output, "===") {
				said[name] = strings.TrimSpace(e.Output)
			}
		case "pass":
			if e.Test != "" {
				r.passed++
			}
		case "skip":
			if e.Test != "" {
				r.skips[name] = said[name]
			}
		case "fail":
			failed = append(failed, e)
		}
	}

	for _, e := range failed {
		holdsAnother := func(other event) bool {
			return other.Package == e.Package && other.Test != e.Test && strings.HasPrefix(other.Test, e.Test)
		}
		if slices.ContainsFunc(failed, holdsAnother) {
			continue
		}
		r.failed = append(r.failed, strings.TrimSpace(strings.TrimPrefix(e.Package, module+"/")+" "+e.Test))
		if found := seeds[e.Package]; found != "" {
			r.seeds = append(r.seeds, "-shuffle="+found+" "+strings.TrimPrefix(e.Package, module+"/"))
		}
	}
}

// page is the night on one page.
func page(results []nightResult) string {
	var b strings.Builder
	head, _ := git("rev-parse", "--short", "HEAD")
	fmt.Fprintf(&b, "# Nightly of %s, %s, GPUADM_TURN=%s\n\n",
		strings.TrimSpace(head), time.Now().UTC().Format("2006-01-02"), nightTurn())
	b.WriteString("| ring | result | time | passed | failed | skipped |\n|---|---|---|---|---|---|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d |\n", r.name, word(r.ok), r.took.Round(time.Second), r.passed, len(r.failed), len(r.skips))
	}

	for _, r := range results {
		if len(r.failed)+len(r.seeds)+len(r.skips) == 0 && r.ok {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n", r.name)
		for _, name := range r.failed {
			fmt.Fprintf(&b, "- failed: %s\n", name)
		}
		for _, s := range r.seeds {
			fmt.Fprintf(&b, "- seed: %s\n", s)
		}
		for name, why := range r.skips {
			fmt.Fprintf(&b, "- skipped: %s: %s\n", name, why)
		}
		if !r.ok && len(r.failed) == 0 {
			fmt.Fprintf(&b, "- its command failed: bin/nightly/%s.log\n", r.name)
		}
	}
	return b.String()
}

func word(ok bool) string {
	if ok {
		return "passed"
	}
	return "FAILED"
}
