// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
)

// timed is a screen that knows the longest time in which nothing was written.
type timed struct {
	mu      sync.Mutex
	text    bytes.Buffer
	last    time.Time
	longest time.Duration
}

func (w *timed) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.longest = max(w.longest, time.Since(w.last))
	w.last = time.Now()
	return w.text.Write(text)
}

// slowHost has the time of the test's clock, by which events are dated.
type slowHost struct{ hungHost }

func (slowHost) Now() time.Time { return time.Now() }

// slowOpen is how long a machine may take before anything can be asked: a disk that spins up.
const slowOpen = 7 * time.Second

// TestSilence: whatever is slow, no verb is silent on a terminal for more than two seconds. Each verb of
// the help is here, but for those that begin no work on a machine, and ssh, whose time is another
// program's.
func TestSilence(t *testing.T) {
	outsideBubble(t)
	lines := map[string]string{
		"init": "init --print", "validate": "validate", "plan": "plan", "apply": "apply", "status": "status",
		"undo": "undo -y", "doctor": "doctor", "repair": "repair RUN-001 -y", "bake": "bake --dry-run",
		"mirror": "mirror --for ubuntu-24.04 --kernel 6.8.0-88-generic -o /srv/mirror",
		"config": "config", "mig fit": "mig fit", "mig profiles": "mig profiles", "mig export": "mig export",
		"mig generate": "mig generate", "owners": "owners", "facts": "facts", "manifest": "manifest",
		"manifest runtimeclass": "manifest runtimeclass", "manifest device-plugin": "manifest device-plugin",
		"bundle": "bundle -o -",
	}
	none := map[string]bool{"ssh": true, "version": true, "mig": true}

	seen := 0
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		path := strings.TrimPrefix(cmd.CommandPath(), "gpuadm ")
		skips := cmd.Hidden || cmd.Name() == "completion" || cmd.Name() == "help"
		if skips {
			return
		}
		if line := lines[path]; line != "" {
			seen++
			slow := []string{"disk", "driver", "journalctl", "systemd", "engine"}
			if asksServer := []string{"plan", "apply", "status", "doctor"}; slices.Contains(asksServer, path) {
				slow = append(slow, "API server") // others ask it with several goroutines under one lock
			}
			for _, what := range slow {
				t.Run(path+"/"+what, func(t *testing.T) { notSilent(t, what, line) })
			}
		} else if cmd.HasParent() && cmd.Runnable() {
			check.That(t, none[path], "no line types %s", path)
		}

		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}

	visit(newRoot(env{getenv: func(string) string { return "" }}))
	must.That(t, seen == len(lines), "%d of %d verbs", seen, len(lines))
}

// notSilent runs a command line while something is slow, on a clock that waits for nothing.
func notSilent(t *testing.T, what, line string) {
	synctest.Test(t, func(t *testing.T) {
		w := incident.Joined(t, true)
		spec := "format = 1\n[runtime]\n"
		if what != "API server" {
			spec += "[node]\nlabels = { a = \"b\" }\n"
		}
		w.Put("etc/gpuadm/node.toml", spec)
		h := slowHost{hungHost{
			Node: w.Node(),
			what: what,
			hung: new(atomic.Bool),
		}}
		open := func(string, commands.Follow) (host.Host, error) {
			if what == "disk" {
				time.Sleep(slowOpen)
			}
			return h, nil
		}

		screen := &timed{last: time.Now()}
		e := envOn(h.Node, screen)
		e.open = open
		e.image = func(root string, _ *local.ModuleKey, follow commands.Follow) (host.Host, func(), error) {
			h, err := open(root, follow)
			return h, func() {}, err
		}

		e.impatient = true
		e.isTerminal = func(io.Writer) bool { return true }
		run(t.Context(), e, strings.Fields(line))
		_, _ = screen.Write(nil)
		const most = 2 * time.Second
		longest := screen.longest
		check.That(t, longest <= most, "%s is slow: %s was silent for %v:\n%s", what, line, longest, &screen.text)
	})
}

// TestSilenceEnds: the live line goes with the next output and at the end; a pipe has a line of its own,
// after a quarter of a minute; a run's voice and a question pause it.
func TestSilenceEnds(t *testing.T) {
	var out strings.Builder
	s := &silence{to: &out, doing: looksHere, since: time.Now()}
	s.live = true
	s.patience = livePatience
	s.every = time.Second
	s.width = func() int { return 80 }
	at := func(after time.Duration) { s.beat(s.since.Add(after)) }
	at(time.Second)
	at(2 * time.Second)
	_, _ = spoken{&out, s}.Write([]byte("the answer\n"))
	s.pause()
	at(5 * time.Second)
	s.resume()
	check.Equal(t, out.String(), "             … looks at the machine   2s\r\x1b[2Kthe answer\n", "a terminal shows")

	out.Reset()
	s = &silence{to: &out, doing: looksHere, since: time.Now()}
	s.patience = pipePatience
	s.every = pipePatience
	at(14 * time.Second)
	at(15 * time.Second)
	at(16 * time.Second)
	check.Equal(t, out.String(), "             … looks at the machine   15s\n", "a pipe has")
}
