// SPDX-FileCopyrightText: The gpuadm authors
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

// A dnfMove is one line of the table that dnf shows before it asks.
type dnfMove struct {
	rpmPackage
	gone  bool // it is removed
	drawn bool // as a dependency
}

// parseTable reads what dnf would do. A name that is too long for its column has a line of its own.
func parseTable(out string) (moves []dnfMove) {
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
				moves = append(moves, dnfMove{rpmPackage{f[1][:i], strings.TrimSuffix(f[2], "."), f[1][i+1:]}, true, true})
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

func moveIn(section string, words []string) (dnfMove, bool) {
	m := dnfMove{rpmPackage: rpmPackage{words[0], evrOf(words[2]), words[1]}, drawn: strings.Contains(section, "depend")}
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

// A task is what dnf is told: in one transaction, whatever it is.
type task struct{ install, reinstall, remove []string }

func (t task) empty() bool { return len(t.install)+len(t.reinstall)+len(t.remove) == 0 }

// args are those of the command that does it all; nil where one command cannot.
func (t task) args() []string {
	switch {
	case len(t.reinstall)+len(t.remove) == 0:
		return append([]string{"install"}, t.install...)
	case len(t.install)+len(t.remove) == 0:
		return append([]string{"reinstall"}, t.reinstall...)
	case len(t.install)+len(t.reinstall) == 0:
		return append([]string{"remove"}, t.remove...)
	}
	return nil
}

// script is for dnf's shell. That goes on behind a line that fails, so it may run only what a simulation has shown; and it
// takes files in the first line alone.
func (t task) script() []byte {
	var b strings.Builder
	for _, l := range []struct {
		verb string
		what []string
	}{{"install", t.install}, {"reinstall", t.reinstall}, {"remove", t.remove}} {
		if len(l.what) > 0 {
			b.WriteString(l.verb + " " + strings.Join(l.what, " ") + "\n")
		}
	}
	return []byte(b.String() + "run\nexit\n")
}

// task is what dnf is told for changes. Versions that only our folder has are told as files.
func (r *dnfResolution) task() (t task) {
	for _, c := range packages.Due(r.changes) {
		to, found := packages.Parse(c.After), r.d.packages[c.Name]
		spec := named(c.Name, to.Version)
		if _, ok := packages.Find(r.offers[c.Name], to.Version); !ok && to.Installed() {
			if file := storedRPM(r.v, c.Name, to.Version); file != "" {
				spec = file
			}
		}
		switch {
		case !to.Installed():
			t.remove = append(t.remove, r.d.spec(c.Name))
		case found.Version == to.Version:
			t.reinstall = append(t.reinstall, spec)
		default:
			t.install = append(t.install, spec)
		}
	}
	return t
}

// simulate asks dnf what a task would do.
func (a dnf) simulate(ctx context.Context, v host.View, t task) ([]dnfMove, error) {
	argv := slices.Concat([]string{"dnf", "--assumeno"}, a.options())
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
		return nil, explainDnf(v, string(out), err)
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
		err = explainDnf(h, string(out), &host.CommandError{Argv: []string{"dnf", "shell"}, Stderr: string(out), Cause: errors.New("not all of it was done")})
	}
	return out, err
}

// exactlyDnf refuses a simulation that would do anything else than the changes say, or less.
func exactlyDnf(moves []dnfMove, changes, work []converge.Change, d rpmDatabase) error {
	refuse := func(because string) error {
		return &converge.Trouble{
			What:    "cannot change packages: dnf would do something else than was planned",
			Because: []string{because, "nothing was touched"},
			Try:     []string{"run the same command again, if somebody else has just installed packages", "dnf check"},
		}
	}
	asked := map[string]bool{}
	for _, c := range changes {
		asked[c.Name] = true
	}
	done := map[string]bool{}
	for _, m := range moves {
		name := m.key(asked)
		i := slices.IndexFunc(changes, func(c converge.Change) bool { return c.Name == name })
		switch {
		case i < 0 && m.gone:
			return refuse("dnf would remove " + m.nevra() + ", which nobody asked for")
		case i < 0:
			return refuse("dnf would install " + m.nevra() + " beside it")
		case m.gone && packages.Parse(changes[i].After).Installed(): // it makes room for its other version
		case !m.gone && packages.Parse(changes[i].After).Version != m.evr:
			return refuse("dnf would install " + m.nevra() + " instead of " + packages.Parse(changes[i].After).Version)
		default:
			done[name] = true
		}
	}
	for _, c := range work {
		if !done[c.Name] {
			return refuse("dnf would leave " + c.Name + " as it is: " + string(d.packages[c.Name].String()))
		}
	}
	return nil
}
