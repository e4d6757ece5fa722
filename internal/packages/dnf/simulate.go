// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Simulate asks dnf what changes would do. dnf has no pins. A package that is removed only for
// another version of it does not count as removed.
func (s solver) Simulate(
	ctx context.Context,
	v host.View,
	changes []converge.Change,
	offers map[string][]packages.Offer,
	_ []packages.Pin,
) ([]packages.Move, error) {
	task := s.task(v, changes, offers)
	moves, err := s.simulate(ctx, v, task)
	if err != nil && len(excludes(v)) > 0 {
		_, unexcludedErr := s.unexcluded().simulate(ctx, v, task)
		if unexcludedErr == nil {
			wanted := strings.Join(task.install, " ")
			return nil, excluded(v, "cannot install "+wanted+": dnf's configuration excludes a package that is needed")
		}
	}

	if lacks := incomplete(changes); err != nil && len(lacks) > 0 {
		whole := s
		whole.d.lacks = nil
		_, wholeErr := s.simulate(ctx, v, whole.task(v, changes, offers))
		if wholeErr == nil {
			return nil, s.d.cannotRestore(lacks, err)
		}
	}

	if err != nil {
		return nil, err
	}

	asked := packages.Named(changes)
	var installs, removals []packages.Move
	for _, m := range moves {
		if m.removed {
			removals = append(removals, packages.Move{Name: m.key(asked)})
		} else {
			installs = append(installs, packages.Move{Name: m.key(asked), Version: m.evr})
		}
	}

	return firstOf(append(installs, removals...)), nil
}

// Unneeded is empty: where dnf removes a package, it also removes what only that one needed, and
// Simulate shows it: dnf.conf(5), clean_requirements_on_remove. What an upgrade makes unneeded is
// left to dnf autoremove, which asks for no lock.
func (solver) Unneeded(
	context.Context,
	host.View,
	[]converge.Change,
	map[string]bool,
	map[string][]packages.Offer,
	[]packages.Pin,
) ([]string, error) {
	return nil, nil
}

// firstOf returns the first move of each package.
func firstOf(moves []packages.Move) (list []packages.Move) {
	seen := map[string]bool{}
	for _, m := range moves {
		if !seen[m.Name] {
			seen[m.Name] = true
			list = append(list, m)
		}
	}

	return list
}

// simulate asks dnf what a task would do.
func (a dnf) simulate(ctx context.Context, v host.View, t task) ([]move, error) {
	argv := slices.Concat([]string{"dnf", "--assumeno"}, a.options(v))
	var out []byte
	var err error
	if args := t.args(); args != nil {
		out, err = v.Ask(ctx, append(argv, args...)...)
	} else {
		shell := append(argv, "--allowerasing", "shell", host.Scratch+"/transaction")
		out, err = v.AskAbout(ctx, map[string][]byte{"transaction": t.script()}, shell...)
	}

	said := string(out)
	var failed *host.CommandError
	switch {
	case errors.As(err, &failed):
		said += "\n" + failed.Stderr
	case err != nil:
		return nil, err
	}

	// dnf fails after each simulation, since --assumeno aborts the operation.
	const aborted = "Operation aborted"
	moves := parseTable("\n" + said)
	isOther := func(line string) bool { return !strings.Contains(line, aborted) }
	hasError := slices.ContainsFunc(sayDnfError().FindAllString(said, -1), isOther)
	unexpected := err != nil && (len(moves) == 0 || !strings.Contains(said, aborted))
	if !unexpected && !hasError && !sayUnmatched().MatchString(said) {
		return moves, nil
	}
	if err == nil {
		err = &host.CommandError{
			Argv:   argv,
			Stderr: said,
			Cause:  errors.New("not all of it can be done"),
		}
	}

	return nil, explain(v, string(out), err)
}

// A move is one line of the table that dnf shows before it asks.
type move struct {
	rpmPackage
	removed bool
}

// parseTable reads what dnf would do. A name that is too long for its column has a line of its own.
func parseTable(out string) (moves []move) {
	_, table, ok := strings.Cut(out, "\n Package ")
	if !ok {
		return nil
	}
	table, _, _ = strings.Cut(table, "\nTransaction Summary")
	section := ""
	var words []string // of a row, which may have several lines
	for line := range strings.Lines(table) {
		line = strings.TrimRight(line, "\n")
		more := strings.Fields(line)
		switch {
		case len(more) == 0 || strings.HasPrefix(line, "="):
			words = nil
		case line[0] != ' ' && strings.HasSuffix(line, ":"):
			section = strings.TrimSuffix(line, ":")
			words = nil
		case more[0] == "replacing" && len(more) >= 3:
			moves = append(moves, replaced(more)...)
		default:
			words = append(words, more...)
			if len(words) < 4 {
				continue
			}
			moves = append(moves, rowOf(section, words)...)
			words = nil
		}
	}

	return moves
}

// replaced reads "replacing NAME.ARCH VERSION.".
func replaced(words []string) []move {
	name := words[1]
	version := strings.TrimSuffix(words[2], ".")
	dot := strings.LastIndex(name, ".")
	if dot <= 0 {
		return nil
	}
	p := rpmPackage{name: name[:dot], evr: version, arch: name[dot+1:]}
	return []move{{rpmPackage: p, removed: true}}
}

// rowOf reads a row "NAME ARCH VERSION REPOSITORY SIZE" of a section such as "Installing
// dependencies"; none in sections of modules and groups.
func rowOf(section string, words []string) []move {
	p := rpmPackage{
		name: words[0],
		evr:  strings.TrimPrefix(words[2], "0:"),
		arch: words[1],
	}
	verb, _, _ := strings.Cut(section, " ")
	switch verb {
	case "Removing":
		return []move{{rpmPackage: p, removed: true}}
	case "Installing", "Upgrading", "Downgrading", "Reinstalling":
		if !strings.Contains(section, "module") && !strings.Contains(section, "group") {
			return []move{{rpmPackage: p}}
		}
	}

	return nil
}
