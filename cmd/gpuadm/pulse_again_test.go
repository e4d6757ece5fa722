// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"sync"
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

	p.begin(time.Hour, 0, show)
	p.saw(making)
	p.follow("Unpacking 3 of 9", "the first run's line")
	p.end()

	making.Usual = 0
	p.begin(time.Hour, 0, show)
	defer p.end()
	p.saw(making)
	p.beat(now.Add(2 * time.Hour))
	if strings.Contains(shown, "3 of 9") || strings.Contains(shown, "first") || strings.Contains(shown, "usually") {
		t.Errorf("shows the run before: %q", shown)
	}
}

// TestLastBeatOfAVoice: the last beat of a voice may come while the next one of the process begins,
// as at a boot that tries again. The race detector sees whether they share a value.
func TestLastBeatOfAVoice(t *testing.T) {
	v := voiceOn(io.Discard)
	v.close()

	over := make(chan struct{})
	var beats sync.WaitGroup
	beats.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				v.beat(time.Now())
			}
		}
	})
	for range 100 {
		v.common.voice().close()
	}
	close(over)
	beats.Wait()
}
