// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/pages"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestHabits types what users of other programs type. gpuadm refuses each, touches nothing, and
// names a command that parses and that no habit refuses in its turn.
func TestHabits(t *testing.T) {
	for _, h := range slices.Concat(verbHabits, flagHabits) {
		words := strings.Fields(h.typed)
		if words[0] == "*" {
			words[0] = "apply"
		}
		switch {
		case strings.Contains(h.here, "VALUE"), h.here == "-f":
			words = append(words, "runtime")
		case h.here == "--deadline":
			words = append(words, "10m")
		}

		n := must.Get(simhost.New(recorded(t)["debian12-containerd16"]))(t)
		var out bytes.Buffer
		var told []string
		e := envOn(n, &out)
		e.told = func(line string) { told = append(told, line) }

		code := run(context.Background(), e, words)
		check.That(t, code == exitUsage && n.Touches() == 0, "%q: exit %d, %d touches", h.typed, code, n.Touches())
		for line := range strings.Lines(out.String()) {
			at := strings.Index(line, "gpuadm ")
			if strings.HasPrefix(line, "  try ") && at >= 0 {
				told = append(told, strings.TrimSpace(line[at:]))
			}
		}

		check.That(t, len(told) > 0, "%q: no command is named:\n%s", h.typed, out.String())
		for _, line := range told {
			line = strings.TrimPrefix(line, "sudo ")
			next := (pages.Line{Text: line}).Commands()[0][1:]
			_, err := typed(envOn(n, &out), next)
			_, habit := envOn(n, &out).habitual(newRoot(envOn(n, &out)), next)
			check.That(t, err == nil && habit == nil, "%q names %q: %v, %v", h.typed, line, err, habit)
		}
	}
}
