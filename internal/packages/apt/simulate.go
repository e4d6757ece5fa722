// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// What apt-get -s prints: "Inst NAME [OLD] (NEW SOURCE… [ARCH])", "Remv NAME [OLD]", "Purg NAME [OLD]". "Conf" says nothing new.
var (
	sayInst = pattern.Of(`^Inst (\S+)(?: \[[^\]]*\])? \((\S+)(?: .*)? \[([^\]]*)\]\)`)
	sayRemv = pattern.Of(`^(?:Remv|Purg) (\S+) \[`)
)

// parseSimulation returns what apt would do, in its order.
func parseSimulation(out, native string) []packages.Move {
	var moves []packages.Move
	for line := range strings.Lines(out) {
		if m := sayInst().FindStringSubmatch(line); m != nil {
			moves = append(moves, packages.Move{Name: strings.TrimSuffix(m[1], ":"+native), Version: m[2]})
		} else if m := sayRemv().FindStringSubmatch(line); m != nil {
			moves = append(moves, packages.Move{Name: strings.TrimSuffix(m[1], ":"+native)})
		}
	}
	return lastOf(moves)
}

// lastOf are the moves that count: a package may be removed to be installed in another version.
func lastOf(moves []packages.Move) (list []packages.Move) {
	for i, m := range moves {
		if !slices.ContainsFunc(moves[i+1:], func(o packages.Move) bool { return o.Name == m.Name }) {
			list = append(list, m)
		}
	}
	return list
}

// simulate asks apt what a verb with its arguments would do. pins count before those on disk: apt reads the file preferences before the
// folder preferences.d, and the first record that fits a version counts (ReadPinFile and pkgPolicy::CreatePin in apt-pkg/policy.cc).
func (a apt) simulate(ctx context.Context, v host.View, native string, what []string, pins []packages.Pin) ([]packages.Move, error) {
	argv := slices.Concat([]string{"apt-get", "-s"}, readOnly(v), a.options())
	ask := v.Ask
	if len(pins) > 0 {
		const file = "preferences"
		theirs, err := v.ReadFile("/etc/apt/preferences")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		files := map[string][]byte{file: slices.Concat([]byte(packages.Records(pins)+"\n"), theirs)}
		ask = func(ctx context.Context, argv ...string) ([]byte, error) { return v.AskAbout(ctx, files, argv...) }
		argv = append(argv, "-o", "Dir::Etc::Preferences="+host.Scratch+"/"+file)
	}
	out, err := ask(ctx, slices.Concat(argv, what)...)
	if err != nil {
		return nil, explain(v, string(out), err)
	}
	return parseSimulation(string(out), native), nil
}
