// SPDX-License-Identifier: Apache-2.0

package things

import (
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestAfter: a file that changed after the unit started, by the wall clock or by the monotonic
// clock, makes the daemon outdated.
func TestAfter(t *testing.T) {
	started := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		changed time.Duration // after the start, by the wall clock
		now     time.Duration // after the start, by the wall clock
		running time.Duration // by the monotonic clock
		want    bool
	}{
		"a minute before the start":                       {-time.Minute, time.Minute, time.Minute, false},
		"a minute after the start":                        {time.Minute, 2 * time.Minute, 2 * time.Minute, true},
		"in the tick of the start":                        {0, time.Minute, time.Minute, true},
		"after the start, and NTP set the clock back":     {-time.Minute, 0, 2 * time.Minute, true},
		"after the start, and NTP set the clock forwards": {time.Minute, time.Hour, 2 * time.Minute, true},
		"in the future: the clock was set back later":     {time.Hour, time.Minute, 2 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			u := host.Unit{
				Started: started,
				Since:   time.Second,
				Uptime:  time.Second + c.running,
			}
			got := after(started.Add(c.changed), started.Add(c.now), u)
			must.That(t, got == c.want, "after: %v, want %v", got, c.want)
		})
	}
}
