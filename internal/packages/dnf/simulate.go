// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A move is one line of the table that dnf shows before it asks.
type move struct {
	rpmPackage
	gone bool // it is removed
}

// parseTable reads what dnf would do. A name that is too long for its column has a line of its own.
func parseTable(out string) (moves []move) {
	_, table, ok := strings.Cut(out, "\n Package ")
	if !ok {
		return nil
	}
	table, _, _ = strings.Cut(table, "\nTransaction Summary")
	section := ""
	var words []string
	for line := range strings.Lines(table) {
		line = strings.TrimRight(line, "\n")
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(line, "="):
			words = nil
		case line[0] != ' ' && strings.HasSuffix(line, ":"):
			section, words = strings.TrimSuffix(line, ":"), nil
		case f[0] == "replacing" && len(f) >= 3:
			if i := strings.LastIndex(f[1], "."); i > 0 {
				moves = append(moves, move{rpmPackage{f[1][:i], strings.TrimSuffix(f[2], "."), f[1][i+1:]}, true})
			}
		default:
			if words = append(words, f...); len(words) >= 4 {
				if m, ok := moveIn(section, words); ok {
					moves = append(moves, m)
				}
				words = nil
			}
		}
	}
	return moves
}

func moveIn(section string, words []string) (move, bool) {
	m := move{rpmPackage: rpmPackage{words[0], evrOf(words[2]), words[1]}}
	switch verb, _, _ := strings.Cut(section, " "); verb {
	case "Installing", "Upgrading", "Downgrading", "Reinstalling":
		if strings.Contains(section, "module") || strings.Contains(section, "group") {
			return m, false
		}
		return m, true
	case "Removing":
		m.gone = true
		return m, true
	}
	return m, false
}

func evrOf(s string) string { return strings.TrimPrefix(s, "0:") }

// A task is what dnf does in one transaction.
type task struct{ install, remove []string }

// args are those of the command that does it all; nil where one command cannot.
func (t task) args() []string {
	switch {
	case len(t.remove) == 0:
		return append([]string{"install"}, t.install...)
	case len(t.install) == 0:
		return append([]string{"remove"}, t.remove...)
	}
	return nil
}

// script is for dnf's shell. That goes on behind a line that fails, so it may run only what a simulation has shown; and it
// takes files in the first line alone.
func (t task) script() []byte {
	return []byte("install " + strings.Join(t.install, " ") + "\nremove " + strings.Join(t.remove, " ") + "\nrun\nexit\n")
}

// task is what dnf does for changes. Versions that only Store has are given as files.
func (s solver) task(v host.View, changes []converge.Change, offers map[string][]packages.Offer) (t task) {
	for _, c := range packages.Due(changes) {
		to := packages.Parse(c.After)
		if !to.Installed() {
			t.remove = append(t.remove, s.d.spec(c.Name))
			continue
		}
		spec := named(c.Name, to.Version)
		if _, ok := packages.Find(offers[c.Name], to.Version); !ok {
			spec = cmp.Or(storedRPM(v, c.Name, to.Version), spec)
		}
		t.install = append(t.install, spec)
	}
	return t
}

// Simulate asks dnf what changes would do. dnf has no pins. A package that only makes room for its other version is not removed.
func (s solver) Simulate(
	ctx context.Context, v host.View, changes []converge.Change, offers map[string][]packages.Offer, _ []packages.Pin,
) (all []packages.Move, err error) {
	moves, err := s.simulate(ctx, v, s.task(v, changes, offers))
	if err != nil {
		return nil, err
	}
	asked := map[string]bool{}
	for _, c := range changes {
		asked[c.Name] = true
	}
	for _, gone := range []bool{false, true} {
		for _, m := range moves {
			name := m.key(asked)
			if m.gone == gone && !slices.ContainsFunc(all, func(o packages.Move) bool { return o.Name == name }) {
				all = append(all, packages.Move{Name: name, Version: map[bool]string{false: m.evr}[gone]})
			}
		}
	}
	return all, nil
}

// simulate asks dnf what a task would do.
func (a dnf) simulate(ctx context.Context, v host.View, t task) ([]move, error) {
	argv := slices.Concat([]string{"dnf", "--assumeno"}, a.options(v))
	var out []byte
	var err error
	if args := t.args(); args != nil {
		if args[0] == "install" {
			argv = append(argv, "--allowerasing")
		}
		out, err = v.Ask(ctx, append(argv, args...)...)
	} else {
		out, err = v.AskAbout(ctx, map[string][]byte{"transaction": t.script()}, append(argv, "--allowerasing", "shell", host.Scratch+"/transaction")...)
	}
	failed := (*host.CommandError)(nil)
	said := string(out)
	if errors.As(err, &failed) {
		said += "\n" + failed.Stderr
	} else if err != nil {
		return nil, err
	}
	moves := parseTable("\n" + said)
	wrong := slices.ContainsFunc(sayDnfError().FindAllString(said, -1), func(l string) bool { return !strings.Contains(l, "Operation aborted") })
	if wrong || sayUnmatched().MatchString(said) || len(moves) == 0 && err != nil || err != nil && !strings.Contains(said, "Operation aborted") {
		if err == nil {
			err = &host.CommandError{Argv: argv, Stderr: said, Cause: errors.New("not all of it can be done")}
		}
		return nil, explain(v, string(out), err)
	}
	return moves, nil
}

// do has dnf do a task.
func (a dnf) do(ctx context.Context, h host.Host, t task) ([]byte, error) {
	if args := t.args(); args != nil {
		return a.run(ctx, h, args...)
	}
	if err := packages.Folder(h); err != nil {
		return nil, err
	}
	const file = packages.Store + "/transaction"
	if err := h.WriteFile(file, t.script(), host.Attr{Mode: 0o600}); err != nil {
		return nil, err
	}
	out, err := a.run(ctx, h, "shell", file)
	if rm := h.Remove(file); err == nil {
		err = rm
	}
	if err == nil && (sayUnmatched().Match(out) || sayDnfError().Match(out)) {
		err = explain(h, string(out), &host.CommandError{Argv: []string{"dnf", "shell"}, Stderr: string(out), Cause: errors.New("not all of it was done")})
	}
	return out, err
}
