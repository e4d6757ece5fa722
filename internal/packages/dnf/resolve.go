// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A solver is dnf with a reading of rpm's database for one request.
type solver struct {
	dnf
	d rpmDatabase
}

// Resolve chooses the open versions, and asks dnf what else would change.
func (a dnf) Resolve(ctx context.Context, v host.View, ask packages.Request) ([]converge.Change, error) {
	d, err := readRPM(ctx, v)
	if err != nil {
		return nil, err
	}
	ask.Changes = d.withPlugin(ask.Changes)
	if err := a.streamed(ctx, v, ask, d); err != nil {
		return nil, err
	}
	r, err := packages.Resolve(ctx, v, ask, d.packages, solver{a, d})
	if err != nil {
		return nil, err
	}
	for i, c := range r.Changes { // dnf keeps its own record of why a package is installed: see readRPM
		after := packages.Parse(c.After)
		after.Auto = false
		r.Changes[i].After = after.String()
	}
	again, err := a.unfiltered().Offers(ctx, v, r.Replaced())
	r.Lost(again, func(name, version string) bool { return a.Stored(v, name, version) != "" })
	return r.Changes, err
}

// Available also sees packages that streams hide.
func (a dnf) Available() packages.Solver { return solver{dnf: a.unfiltered()} }

// withPlugin adds the package of dnf's versionlock plugin if a change wants a lock: without the
// plugin dnf ignores locks.
func (d rpmDatabase) withPlugin(changes []converge.Change) []converge.Change {
	if d.locks.plugin || d.packages[lockPlugin].Installed() || slices.ContainsFunc(changes, func(c converge.Change) bool { return c.Name == lockPlugin }) {
		return changes
	}
	if !slices.ContainsFunc(changes, func(c converge.Change) bool { return packages.Parse(c.After).Held }) {
		return changes
	}
	return append(slices.Clone(changes), converge.Change{
		Ref: converge.Ref{Kind: "package", Name: lockPlugin}, After: packages.State{Version: lockPlugin + "=*"}.String(), Dependency: true, Why: "dnf keeps to locked versions by it",
	})
}

func (solver) Words() packages.Words {
	return packages.Words{Source: "repository", Refresh: "dnf makecache --refresh", Show: "dnf --assumeno install", At: "-"}
}

// Without is empty: rpm keeps no configuration but what was edited, as .rpmsave.
func (solver) Without(host.View, string) converge.State { return "" }

// Essential is false: dnf itself refuses to remove what is protected: dnf.conf(5),
// protected_packages.
func (solver) Essential(string) bool { return false }

// Offers asks which versions are available.
func (a dnf) Offers(ctx context.Context, v host.View, names []string) (map[string][]packages.Offer, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return map[string][]packages.Offer{}, nil
	}
	const format = "%{name}\t%{epoch}\t%{version}\t%{release}\t%{arch}\t%{repoid}"
	out, err := a.query(ctx, v, append([]string{"--showduplicates", "--qf", format}, names...)...)
	if err != nil {
		return nil, err
	}
	all := parseOffers(out, names, ranks(v))
	for name := range all {
		all[name] = packages.Newest(all[name], a.Compare)
	}
	return all, nil
}

// Offers leaves out what dnf's plugin versionlock hides. gpuadm runs dnf without it, since it also
// hides what gpuadm's own locks exclude.
func (s solver) Offers(ctx context.Context, v host.View, names []string) (map[string][]packages.Offer, error) {
	all, err := s.dnf.Offers(ctx, v, names)
	for name := range all {
		all[name] = slices.DeleteFunc(all[name], func(o packages.Offer) bool { return s.d.hides(name, o.Version) })
	}
	return all, err
}

// query asks what is available.
func (a dnf) query(ctx context.Context, v host.View, args ...string) (string, error) {
	out, err := v.Ask(ctx, slices.Concat([]string{"dnf", "-q"}, a.options(v), []string{"repoquery", "--available"}, args)...)
	if err != nil {
		err = explain(v, string(out), err)
	}
	return string(out), err
}

// rows splits the lines of an answer into its columns.
func rows(out string, columns int) (all [][]string) {
	for line := range strings.Lines(strings.ReplaceAll(out, `\t`, "\t")) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) == columns {
			all = append(all, f)
		}
	}
	return all
}

// ranks returns the repositories' priorities by id, as Offer counts them. For dnf the lowest number
// comes first, and the default is 99 (dnf.conf(5), priority). dnf offers no packages that modules
// or excludes hide.
func ranks(v host.View) map[string]int {
	rank := map[string]int{}
	repos, _ := reposIn(v, repoFiles(v, "", "")) // dnf reports a file that it cannot read
	for _, r := range repos {
		if p, err := strconv.Atoi(r.values["priority"]); err == nil {
			rank[r.id] = max(0, unset+99-p)
		}
	}
	return rank
}

// unset is the rank of a repository whose priority is not set.
const unset = 1000

func parseOffers(out string, names []string, rank map[string]int) map[string][]packages.Offer {
	all := map[string][]packages.Offer{}
	for _, f := range rows(out, 6) {
		p := rpmPackage{f[0], evr(f[1], f[2], f[3]), f[4]}
		o := packages.Offer{Version: p.evr, Priority: unset, From: []string{f[5]}}
		if has, known := rank[f[5]]; known {
			o.Priority = has
		}
		for _, name := range p.keys() {
			if slices.Contains(names, name) && !slices.ContainsFunc(all[name], func(b packages.Offer) bool { return b.Version == o.Version && b.From[0] == o.From[0] }) {
				all[name] = append(all[name], o)
			}
		}
	}
	return all
}

// Hidden returns an error if module streams or excludes hide the packages, which would otherwise be
// available.
func (s solver) Hidden(ctx context.Context, v host.View, what, pattern string, members []string, seen map[string][]packages.Offer) error {
	more := func(offers func(context.Context, host.View, []string) (map[string][]packages.Offer, error)) (only []string, err error) {
		all, err := offers(ctx, v, members)
		for _, m := range members {
			has := func(o packages.Offer) bool { return packages.Matches(pattern, o.Version) }
			if slices.ContainsFunc(all[m], has) && !slices.ContainsFunc(seen[m], has) {
				only = append(only, m)
			}
		}
		return only, err
	}
	only, err := more(solver{s.unfiltered(), s.d}.Offers)
	if err != nil {
		return err
	}
	if len(only) == 0 {
		if only, err = more(s.unexcluded().Offers); err != nil || len(only) == 0 {
			return err
		}
		return excluded(v, fmt.Sprintf("cannot install %s: a repository has %s, and dnf's configuration excludes it", what, strings.Join(only, ", ")))
	}
	t := &trouble.Error{
		What:    fmt.Sprintf("cannot install %s: the repository has %s, and dnf's module streams hide it", what, strings.Join(only, ", ")),
		Because: []string{"no stream of " + driverModule + " is enabled"},
		Try:     []string{"dnf module list nvidia-driver, which shows the streams", "dnf module reset nvidia-driver, then run the same command again"},
	}
	if is, err := readStream(v, driverModule); err == nil && is != "" {
		t.Because = []string{fmt.Sprintf("stream %s:%s is enabled, and does not have that version", driverModule, is)}
	}
	return t
}

func excluded(v host.View, what string) error {
	const try = "remove it from excludepkgs (or exclude) there, or by dnf versionlock delete, then run the same command again"
	return &trouble.Error{What: what, Because: excludes(v), Try: []string{try}, Err: packages.ErrExcluded}
}

// excludes lists the files and sections that hide packages from dnf: dnf.conf(5), excludepkgs and
// its older name exclude.
func excludes(v host.View) (found []string) {
	if l, err := readLocks(v); err == nil && len(l.lines) > 0 {
		found = []string{l.file + ", which dnf versionlock list shows"}
	}
	sections, _ := reposIn(v, append([]string{"/etc/dnf/dnf.conf"}, repoFiles(v, "", "")...))
	for _, r := range sections {
		for _, key := range []string{"excludepkgs", "exclude"} {
			if r.values[key] != "" {
				found = append(found, fmt.Sprintf("%s, [%s]: %s = %s", r.file, r.id, key, r.values[key]))
			}
		}
	}
	return found
}

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
			if words = append(words, f...); len(words) < 4 {
				continue
			}
			verb, _, _ := strings.Cut(section, " ")
			installs := slices.Contains([]string{"Installing", "Upgrading", "Downgrading", "Reinstalling"}, verb) && !strings.Contains(section, "module") && !strings.Contains(section, "group")
			if installs || verb == "Removing" {
				moves = append(moves, move{rpmPackage{words[0], strings.TrimPrefix(words[2], "0:"), words[1]}, !installs})
			}
			words = nil
		}
	}
	return moves
}

// A task is what dnf does in one transaction.
type task struct{ install, remove []string }

// args returns the arguments of one command that does the whole task; nil if no single command can.
func (t task) args() []string {
	switch {
	case len(t.remove) == 0:
		return append([]string{"install", "--allowerasing"}, t.install...)
	case len(t.install) == 0:
		return append([]string{"remove"}, t.remove...)
	}
	return nil
}

// script returns the task for dnf's shell. The shell continues after a line that fails, so gpuadm
// runs only a task that a simulation has shown; it accepts files only in the first line.
func (t task) script() []byte {
	return []byte("install " + strings.Join(t.install, " ") + "\nremove " + strings.Join(t.remove, " ") + "\nrun\nexit\n")
}

// task returns dnf's task for changes. It passes versions that only Store has as files.
func (s solver) task(v host.View, changes []converge.Change, offers map[string][]packages.Offer) (t task) {
	for _, c := range packages.Due(changes) {
		to := packages.Parse(c.After)
		if !to.Installed() {
			t.remove = append(t.remove, s.d.spec(c.Name))
			continue
		}
		spec := named(c.Name, to.Version)
		if _, ok := packages.Find(offers[c.Name], to.Version); !ok {
			spec = cmp.Or(s.Stored(v, c.Name, to.Version), spec)
		}
		t.install = append(t.install, spec)
	}
	return t
}

// Simulate asks dnf what changes would do. dnf has no pins. A package that is removed only for
// another version of it does not count as removed.
func (s solver) Simulate(
	ctx context.Context, v host.View, changes []converge.Change, offers map[string][]packages.Offer, _ []packages.Pin,
) (all []packages.Move, err error) {
	what := s.task(v, changes, offers)
	moves, err := s.simulate(ctx, v, what)
	if err != nil && len(excludes(v)) > 0 {
		if _, hidden := s.unexcluded().simulate(ctx, v, what); hidden == nil {
			return nil, excluded(v, "cannot install "+strings.Join(what.install, " ")+": dnf's configuration excludes a package that is needed")
		}
	}
	if err != nil {
		return nil, err
	}
	asked := packages.Named(changes)
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
	if err := packages.MakeStore(h); err != nil {
		return nil, err
	}
	const file = packages.Store + "/transaction"
	if err := h.WriteFile(file, t.script(), host.Attr{Mode: 0o600}); err != nil {
		return nil, err
	}
	out, err := a.run(ctx, h, "--allowerasing", "shell", file)
	if rm := h.Remove(file); err == nil {
		err = rm
	}
	if err == nil && (sayUnmatched().Match(out) || sayDnfError().Match(out)) {
		err = explain(h, string(out), &host.CommandError{Argv: []string{"dnf", "shell"}, Stderr: string(out), Cause: errors.New("not all of it was done")})
	}
	return out, err
}
