// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// A move is one line of apt's simulation.
type move struct {
	name    string
	version string // "" = removed
}

// What apt-get -s prints: "Inst NAME [OLD] (NEW SOURCE… [ARCH])", "Remv NAME [OLD]", "Purg NAME [OLD]". "Conf" says nothing new.
var (
	sayInst = pattern.Of(`^Inst (\S+)(?: \[[^\]]*\])? \((\S+)(?: .*)? \[([^\]]*)\]\)`)
	sayRemv = pattern.Of(`^(?:Remv|Purg) (\S+) \[`)
)

// parseSimulation returns what apt would do, in its order.
func parseSimulation(out, native string) []move {
	var moves []move
	for line := range strings.Lines(out) {
		if m := sayInst().FindStringSubmatch(line); m != nil {
			moves = append(moves, move{strings.TrimSuffix(m[1], ":"+native), m[2]})
		} else if m := sayRemv().FindStringSubmatch(line); m != nil {
			moves = append(moves, move{strings.TrimSuffix(m[1], ":"+native), ""})
		}
	}
	// A package may be removed to be installed in another version: the last word counts.
	var last []move
	for i, m := range moves {
		if !slices.ContainsFunc(moves[i+1:], func(o move) bool { return o.name == m.name }) {
			last = append(last, m)
		}
	}
	return last
}

// simulate asks apt what installing would do.
func (a apt) simulate(ctx context.Context, v host.View, native string, what []string) ([]move, error) {
	out, err := v.Ask(ctx, slices.Concat([]string{"apt-get", "-s"}, readOnly(), a.options(), []string{"install", "--"}, what)...)
	if err != nil {
		return nil, explain(v, string(out), err)
	}
	return parseSimulation(string(out), native), nil
}
