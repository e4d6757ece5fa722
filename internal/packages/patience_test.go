// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
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
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name  string
		takes time.Duration // each run, beside what it waits by itself
		runs  int           // that find it held
		wait  time.Duration
		says  []string
		fails bool
		asked []time.Duration
	}{
		{name: "free", wait: time.Minute, asked: []time.Duration{0}},
		{
			name: "a run waits by itself", runs: 3, wait: 5 * time.Minute,
			says:  []string{"it: waiting for up to 5m0s", "it: waiting for up to 4m48s", "it: waiting for up to 4m36s"},
			asked: []time.Duration{0, 12 * time.Second, 12 * time.Second, 12 * time.Second},
		},
		{
			name: "its end", runs: 99, wait: 20 * time.Second, fails: true,
			says:  []string{"it: waiting for up to 20s", "it: waiting for up to 8s"},
			asked: []time.Duration{0, 12 * time.Second, 8 * time.Second},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &clocked{now: at}
			var says []string
			ctx := converge.Listen(t.Context(), func(_ converge.What, text string) { says = append(says, text) })
			var asked []time.Duration
			err := patience{all: c.wait}.run(ctx, m, func(within time.Duration) error {
				asked = append(asked, within)
				m.now = m.now.Add(within)
				if len(asked) > c.runs {
					return nil
				}
				return &Locked{errors.New("held"), "it"}
			})
			if (err != nil) != c.fails || !slices.Equal(says, c.says) || !slices.Equal(asked, c.asked) {
				t.Errorf("%v\nsays  %q\nwant  %q\nasked %v\nwant  %v", err, says, c.says, asked, c.asked)
			}
		})
	}
}

// Where a run does not wait by itself, the message comes no more often.
func TestPatienceIsNoFlood(t *testing.T) {
	m := &clocked{now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}
	said := 0
	ctx := converge.Listen(context.Background(), func(converge.What, string) { said++ })
	runs := 0
	err := patience{all: 5 * time.Minute}.run(ctx, m, func(time.Duration) error {
		runs++
		m.now = m.now.Add(time.Second)
		return &Locked{errors.New("held"), "it"}
	})
	if busy := (*Locked)(nil); !errors.As(err, &busy) || runs != 300 || said != 25 {
		t.Errorf("%d runs, %d messages: %v", runs, said, err)
	}
}
