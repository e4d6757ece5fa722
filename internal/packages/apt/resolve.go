// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A solver is apt with a reading of dpkg's database for one request.
type solver struct {
	apt
	d dpkg
}

// Resolve chooses the open versions, asks apt what else would change, and checks that the disk has
// room for all.
func (a apt) Resolve(ctx context.Context, v host.View, ask packages.Request) ([]converge.Change, error) {
	d, err := readDpkg(v)
	if err != nil {
		return nil, err
	}
	a.needs = &needs{}
	r, err := packages.Resolve(ctx, v, ask, d.packages, solver{a, d})
	if err != nil {
		return nil, err
	}
	if err := a.needs.room(v); err != nil {
		return nil, err
	}
	again, err := a.Offers(ctx, v, slices.DeleteFunc(r.Replaced(), func(name string) bool { return len(r.Offers[name]) > 0 }))
	if err != nil {
		return nil, err
	}
	maps.Copy(again, r.Offers)
	r.Lost(again, func(name, version string) bool {
		return stored(v, name, version)+archive(v, aptArchives, name, version) != ""
	})
	return r.Changes, nil
}

// Available answers without dpkg's database.
func (a apt) Available() packages.Solver { return solver{apt: a} }

func (solver) Words() packages.Words {
	return packages.Words{Source: "source", Refresh: "apt-get update", Show: "apt-get -s install", At: "="}
}

// Hidden is nil: apt hides nothing.
func (solver) Hidden(context.Context, host.View, string, string, []string, map[string][]packages.Offer) error {
	return nil
}

func (s solver) Without(v host.View, name string) converge.State { return s.d.without(v, name) }
func (s solver) Essential(name string) bool                      { return s.d.details(name).essential }

// Simulate asks apt what an installation would do. It passes versions that only Store has as files.
//
// --print-uris computes all that an installation would, and begins none. It takes half as long as
// -s, which also orders what dpkg would do; but where nothing is to be installed it would mark
// packages, so apt gets a copy of its marks. Sources: InstallPackages in
// apt-private/private-install.cc (apt 1.0 to 3.0) and OpenForInstall in
// apt-private/private-cachefile.h.
//
// pins precede those on disk: the first record that fits a version counts (pkgPolicy::CreatePin in
// apt-pkg/policy.cc).
func (s solver) Simulate(
	ctx context.Context, v host.View, changes []converge.Change, offers map[string][]packages.Offer, pins []packages.Pin,
) ([]packages.Move, error) {
	if len(pins) > 0 {
		pins[len(pins)-1].Priority++ // more than the pin on disk, which fits newer versions of the branch too
	}
	out, err := v.Ask(ctx, slices.Concat([]string{"apt-cache"}, readOnly(v), []string{"pkgnames"})...)
	if err != nil {
		return nil, explain(v, string(out), err)
	}
	text, err := s.literal(v, pins, strings.Fields(string(out)))
	if err != nil {
		return nil, err
	}
	marks, err := v.ReadFile(aptExtStates)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	argv := slices.Concat([]string{"apt-get", "--print-uris", "-V", "--allow-remove-essential", "-o", "Debug::NoLocking=true", "-o", "Dir::State::extended_states=" + host.Scratch + "/marks"},
		readOnly(v), aptPinned(), s.options(), verb(changes), arguments(v, changes, offers))
	if out, err = v.AskAbout(ctx, map[string][]byte{"marks": marks, "pins": text}, argv...); err != nil {
		return nil, explain(v, string(out), err)
	}
	if s.needs != nil {
		*s.needs = needsOf(string(out))
	}
	return parseSimulation(string(out)), nil
}

// aptPinned are apt's options for what literal returns.
func aptPinned() []string {
	return []string{"-o", "Dir::Etc::Preferences=" + host.Scratch + "/pins", "-o", "Dir::Etc::PreferencesParts=/dev/null"}
}

// literal are the machine's pins behind others. In gpuadm's pins the names that a question is about
// replace patterns, since apt matches each pattern with the names of all packages, 50 ms each time.
// A pattern without an architecture fits the native ones. Sources: the files and their order in
// apt_preferences(5); pkgPolicy::CreatePin in apt-pkg/policy.cc.
func (a apt) literal(v host.View, first []packages.Pin, names []string) ([]byte, error) {
	files := []string{"/etc/apt/preferences"}
	for _, name := range packages.ListOf(v, a.pins) {
		if i, err := v.Stat(a.pins + name); err == nil && i.Mode.IsRegular() && aptReads().MatchString(name) {
			files = append(files, a.pins+name)
		}
	}
	text := named(packages.PinRecords(first), names)
	_, err := packages.ReadAll(v, files, func(file string, data []byte) []struct{} {
		said := string(data)
		if strings.HasPrefix(path.Base(file), ourPins) {
			said = named(said, names)
		}
		text += "\n" + said + "\n"
		return nil
	})
	return []byte(text), err
}

// aptReads matches the names of files that apt reads its pins from.
var aptReads = pattern.Of(`^[\w:-]+$|^[\w:.-]+\.pref$`)

// named replaces the patterns in records of pins by the names that fit, behind "-", which is the
// name of none.
func named(records string, names []string) string {
	var text strings.Builder
	for line := range strings.Lines(records) {
		if said, is := strings.CutPrefix(line, "Package: "); is && said != "*\n" {
			globs := strings.Fields(said)
			fit := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
				return strings.Contains(name, ":") || !slices.ContainsFunc(globs, func(glob string) bool {
					if !strings.ContainsAny(glob[:1], `*?[\`) && !strings.HasPrefix(name, glob[:1]) { // most of 60,000 names; path.Match takes longer
						return false
					}
					ok, err := path.Match(glob, name)
					return ok && err == nil
				})
			})
			line = "Package: - " + strings.Join(fit, " ") + "\n"
		}
		text.WriteString(line)
	}
	return text.String()
}

// verb returns apt-get's verb and options. For apt, a partly unpacked package already has its
// version, and apt does not touch it while it is held: apt-get(8), --reinstall.
func verb(changes []converge.Change) []string {
	if packages.Removes(changes) {
		return []string{"remove", "--"}
	}
	if slices.ContainsFunc(packages.Due(changes), func(c converge.Change) bool {
		before, after := packages.Parse(c.Before), packages.Parse(c.After)
		return before.Broken == "half-installed" && before.Version == after.Version
	}) {
		return []string{"install", "--reinstall", "--"}
	}
	return []string{"install", "--"}
}

// arguments are what apt-get install takes for changes: NAME=VERSION, NAME-, or a file of Store
// where offers do not have the version.
func arguments(v host.View, changes []converge.Change, offers map[string][]packages.Offer) (list []string) {
	removes := packages.Removes(changes)
	for _, c := range packages.Due(changes) {
		to := packages.Parse(c.After)
		if removes {
			list = append(list, c.Name)
			continue
		}
		if _, ok := packages.Find(offers[c.Name], to.Version); !ok && to.Installed() {
			if file := stored(v, c.Name, to.Version); file != "" {
				list = append(list, file)
				continue
			}
		}
		list = append(list, install(c.Name, to))
	}
	return list
}

// Offers asks apt which versions of packages are available, newest first. A version that is only
// installed does not count.
func (a apt) Offers(ctx context.Context, v host.View, names []string) (map[string][]packages.Offer, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) == 0 {
		return map[string][]packages.Offer{}, nil
	}
	pins, err := a.literal(v, nil, names)
	if err != nil {
		return nil, err
	}
	out, err := v.AskAbout(ctx, map[string][]byte{"pins": pins}, slices.Concat([]string{"apt-cache"}, readOnly(v), aptPinned(), []string{"policy", "--"}, names)...)
	if err != nil {
		return nil, explain(v, string(out), err)
	}
	all := parsePolicy(string(out))
	for name := range all {
		all[name] = packages.Newest(all[name], a.Compare)
	}
	return all, nil
}

// parsePolicy reads what apt-cache policy NAME… prints: versions with their priority follow five
// spaces, the sources of each, with theirs in four columns, follow seven: ShowPolicy in
// apt-private/private-show.cc.
func parsePolicy(out string) map[string][]packages.Offer {
	all := map[string][]packages.Offer{}
	name := ""
	var last *packages.Offer
	end := func() {
		if last != nil && len(last.From) > 0 {
			all[name] = append(all[name], *last)
		}
		last = nil
	}
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case line[0] != ' ':
			end()
			name = strings.TrimSuffix(line, ":")
		case len(words) >= 2 && (strings.HasPrefix(line, " *** ") || strings.HasPrefix(line, "     ") && line[5:6] != " "):
			end()
			if words[0] == "***" {
				words = words[1:]
			}
			if len(words) < 2 {
				continue
			}
			if p, err := strconv.Atoi(words[1]); err == nil {
				last = &packages.Offer{Version: words[0], Priority: p}
			}
		case last != nil && strings.HasPrefix(line, "       ") && len(words) >= 2 && words[1] != facts.DpkgStatus:
			if _, err := strconv.Atoi(words[0]); err == nil {
				last.From = append(last.From, strings.TrimSuffix(strings.Join(words[1:], " "), " Packages"))
			}
		}
	}
	end()
	return all
}

// What apt-get -V prints: "The following packages will be upgraded:", then " NAME (OLD => NEW)" for
// each; what is removed may have no version. The other lists repeat some.
var (
	sayList = pattern.Of(`^The following (?:NEW packages will be installed|packages will be (REMOVED|upgraded|DOWNGRADED)):$`)
	sayMove = pattern.Of(`^   (\S+?)\*?(?: \((?:\S+ => )?(\S+)\))?$`)
	sayNeed = pattern.Of(`(?m)^Need to get ([0-9.]+) ?(\w?)B`)
	saySize = pattern.Of(`(?m)^After this operation, ([0-9.]+) ?(\w?)B of additional disk space`)
)

// parseSimulation returns what apt would do.
func parseSimulation(out string) (moves []packages.Move) {
	var list []string
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "   ") {
			list = sayList().FindStringSubmatch(line)
		} else if m := sayMove().FindStringSubmatch(line); m != nil && list != nil {
			if list[1] == "REMOVED" {
				m[2] = ""
			}
			moves = append(moves, packages.Move{Name: m[1], Version: m[2]})
		}
	}
	return lastOf(moves)
}

// lastOf returns the last move of each package: apt may remove a package before it installs another
// version.
func lastOf(moves []packages.Move) (list []packages.Move) {
	for i, m := range moves {
		if !slices.ContainsFunc(moves[i+1:], func(o packages.Move) bool { return o.Name == m.Name }) {
			list = append(list, m)
		}
	}
	return list
}

// needs are the bytes that apt would install and download.
type needs struct{ install, download int64 }

// needsOf reads them: SizeToStr in apt-pkg/contrib/strutl.cc.
func needsOf(out string) needs {
	read := func(m []string) int64 {
		if m == nil {
			return 0
		}
		n, _ := strconv.ParseFloat(m[1], 64)
		return int64(n * math.Pow(1000, float64(strings.Index(" kMGTP", cmp.Or(m[2], " ")))))
	}
	return needs{read(saySize().FindStringSubmatch(out)), read(sayNeed().FindStringSubmatch(out))}
}

// room refuses what does not fit on the disk: apt itself only checks the room for downloads, and
// dpkg fails in the middle of its work.
func (n needs) room(v host.View) error {
	usr, err := v.Room("/usr")
	if err != nil {
		return err
	}
	archives, err := v.Room(aptArchives)
	if err != nil {
		return err
	}
	return n.fits(usr.Bytes, archives.Bytes)
}

func (n needs) fits(usr, archives uint64) error {
	if usr == archives { // one file system
		n.install += n.download
	}
	if n.install <= 0 || uint64(n.install) <= usr {
		return nil
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot install packages: the disk is full: they need %d MB in /usr, which has %d MB free", n.install/1e6+1, usr/1e6),
		Try:  []string{"make room (apt-get clean frees what apt has downloaded), then run the same command again"},
	}
}
