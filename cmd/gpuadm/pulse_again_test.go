// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// A second apply of one process, as at a boot, shows nothing of what the first one's programs
// printed.
func TestPulseBeginsAgain(t *testing.T) {
	now := time.Now()
	making := converge.Event{
		What:  converge.Making,
		Stage: "packages",
		Time:  now,
		Line:  &converge.Line{},
		Usual: 60_000,
	}
	var shown string
	show := func(_, _, took, says string) { shown = took + " " + says }
	p := new(pulse)

	p.begin(time.Hour, show)
	p.saw(making)
	p.follow("Unpacking 3 of 9", "the first run's line")
	p.end()

	making.Usual = 0
	p.begin(time.Hour, show)
	defer p.end()
	p.saw(making)
	p.beat(now.Add(2 * time.Hour))
	if strings.Contains(shown, "3 of 9") || strings.Contains(shown, "first") || strings.Contains(shown, "usually") {
		t.Errorf("shows the run before: %q", shown)
	}
}
