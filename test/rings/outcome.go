// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// An outcome is what a ring's log says.
type outcome struct {
	passed int               // tests that hold no others
	failed []string          // package and test
	skips  map[string]string // why, by package and test
	ended  []string          // the tests that hold the others
	notRun []string          // of the listed tests, those that have not ended
}

// passed reports whether the ring came to its end, and all that it should run did.
func (r record) passed(o outcome) bool {
	return r.Ended && r.Exit == 0 && len(o.failed)+len(o.notRun) == 0
}

// An event is one line of go test -json.
type event struct{ Action, Package, Test, Output string }

// runBegins begins a line of the log, before the output of each run.
const runBegins = "== run: "

// outcome reads the log of a ring. A log that is not there is a ring that has not begun.
func (b *book) outcome(r record) (outcome, error) {
	o := outcome{skips: map[string]string{}}
	log, err := os.Open(b.log(r))
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err != nil {
		return o, err
	}
	defer log.Close()
	if err := o.read(log); err != nil {
		return o, fmt.Errorf("cannot read %s: %w", b.log(r), err)
	}

	if r.IsTests && r.Ended && r.Exit == 0 && o.passed == 0 {
		o.failed = append(o.failed, "no test ran")
	}
	for _, name := range r.Tests {
		if !slices.Contains(o.ended, name) {
			o.notRun = append(o.notRun, name)
		}
	}

	return o, nil
}

// read counts what passed, and keeps what failed. Tests that hold further tests do not count.
func (o *outcome) read(log io.Reader) error {
	said := map[string]string{}
	var failed []event
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), runBegins) {
			// The package of a run that was cut short has failed by that.
			failed = slices.DeleteFunc(failed, func(e event) bool { return e.Test == "" })
			continue
		}

		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		o.take(e, said)
		if e.Action == "fail" {
			failed = append(failed, e)
		}
	}

	o.nameFailed(failed)
	return lines.Err()
}

// take keeps what an event says of a test. said has the last line of each test.
func (o *outcome) take(e event, said map[string]string) {
	if e.Test == "" {
		return
	}
	name := e.name()
	switch e.Action {
	case "output":
		isFrame := strings.HasPrefix(strings.TrimSpace(e.Output), "---") || strings.HasPrefix(e.Output, "===")
		if !isFrame {
			said[name] = strings.TrimSpace(e.Output)
		}
		return
	case "pass":
		o.passed++
	case "skip":
		o.skips[name] = said[name]
	case "fail":
	default:
		return
	}

	if !strings.Contains(e.Test, "/") {
		o.ended = append(o.ended, e.Test)
	}
}

// nameFailed names the tests that failed, but for those that failed by another that they hold.
func (o *outcome) nameFailed(failed []event) {
	for _, e := range failed {
		holdsAnother := func(other event) bool {
			inside := e.Test == "" && other.Test != "" || strings.HasPrefix(other.Test, e.Test+"/")
			return other.Package == e.Package && inside
		}

		if !slices.ContainsFunc(failed, holdsAnother) {
			o.failed = append(o.failed, e.name())
		}
	}
}

// name is "mig TestFit"; a package alone has failed to build, or ended before its tests.
func (e event) name() string {
	return strings.TrimSpace(strings.TrimPrefix(e.Package, module+"/") + " " + e.Test)
}
