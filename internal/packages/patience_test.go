// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// clocked is a machine that has a clock and nothing else.
type clocked struct {
	host.Host
	now time.Time
}

func (c *clocked) Now() time.Time { return c.now }

// The holder of a lock is named at once and then now and again, with the time that is left; of a free lock there is no message.
func TestPatienceSays(t *testing.T) {
	for _, c := range []struct {
		name  string
		held  int // how many runs find it held, of 6 s each
		wait  time.Duration
		says  []string
		fails bool
		runs  int
	}{
		{name: "free", wait: time.Minute, runs: 1},
		{name: "held for a while", held: 5, wait: 5 * time.Minute, says: []string{"it: waiting for up to 4m54s", "it: waiting for up to 4m42s", "it: waiting for up to 4m30s"}, runs: 6},
		{name: "its end", held: 99, wait: 20 * time.Second, says: []string{"it: waiting for up to 14s", "it: waiting for up to 2s"}, fails: true, runs: 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &clocked{now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}
			var says []string
			ctx := converge.Listen(t.Context(), func(_ converge.What, text string) { says = append(says, text) })
			runs := 0
			err := patience{all: c.wait}.run(ctx, m, func() error {
				m.now = m.now.Add(6 * time.Second)
				if runs++; runs > c.held {
					return nil
				}
				return &Locked{errors.New("held"), "it"}
			})
			if (err != nil) != c.fails || !slices.Equal(says, c.says) || runs != c.runs {
				t.Errorf("%v\nsays %q\nwant %q\n%d runs, want %d", err, says, c.says, runs, c.runs)
			}
		})
	}
}
