// SPDX-License-Identifier: Apache-2.0

package ubuntu

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// A solution is what apt would change.
type solution struct {
	m       *machine
	c       catalog
	d       *dpkg
	install map[string]*pkg
	remove  map[string]bool
	asked   map[string]bool
}

// aptGet is apt-get(8), as far as gpuadm and operators use it.
func aptGet(m *machine, argv []string) error {
	flags, words := splitArgs(argv)
	for _, f := range flags {
		if !slices.Contains(flagsOfApt, f) {
			return m.fail("Command line option %s is not understood in combination with the other options", f)
		}
	}

	command := words[0]
	names := words[1:]
	if command == "update" {
		return m.update()
	}

	c, err := m.catalog()
	if err != nil {
		return err
	}
	d := m.dpkg()
	switch command {
	case "purge":
		return d.purgeAll(names)
	case "download":
		return m.download(c, names)
	case "remove":
		for i, name := range names { // apt-get(8): as install NAME-
			names[i] = strings.TrimSuffix(name, "-") + "-"
		}
	}

	s := solution{
		m:       m,
		c:       c,
		d:       d,
		install: map[string]*pkg{},
		remove:  map[string]bool{},
		asked:   map[string]bool{},
	}
	err = s.find(command, names)
	if err != nil {
		return err
	}

	onlyAsks := slices.Contains(flags, "--print-uris")
	if onlyAsks {
		s.print()
	}
	err = s.refuse(flags)
	if err != nil || onlyAsks {
		return err
	}
	err = s.commit()
	if err != nil || !slices.Contains(flags, "--purge") {
		return err
	}
	return d.purgeAll(slices.Collect(maps.Keys(s.remove)))
}

// splitArgs parts long flags from words, and drops short flags.
func splitArgs(argv []string) (flags, words []string) {
	for _, a := range argv {
		switch {
		case strings.HasPrefix(a, "--"):
			flags = append(flags, a)
		case a != "-y" && a != "-q" && a != "-V":
			words = append(words, a)
		}
	}
	return flags, words
}

// find finds what to install and what to remove.
func (s *solution) find(command string, names []string) error {
	err := s.ask(names)
	if err != nil {
		return err
	}
	if command == "autoremove" {
		s.autoremove()
		return nil
	}
	return s.solve()
}

// refuse is apt's refusal of a solution that the flags do not allow.
func (s *solution) refuse(flags []string) error {
	for name, p := range s.install {
		is := s.d.installed(name)
		isDowngrade := is != "" && compare(p.Version, is) < 0
		if isDowngrade && !slices.Contains(flags, "--allow-downgrades") {
			return s.m.fail("Packages were downgraded and -y was used without --allow-downgrades.")
		}
	}

	for _, name := range slices.Concat(slices.Collect(maps.Keys(s.install)), slices.Collect(maps.Keys(s.remove))) {
		if s.d.held(name) && !slices.Contains(flags, "--allow-change-held-packages") {
			return s.m.fail("Held packages were changed and -y was used without --allow-change-held-packages.")
		}
	}

	if len(s.remove) > 0 && slices.Contains(flags, "--no-remove") {
		return s.m.fail("Packages need to be removed but remove is disabled.")
	}
	return nil
}

// purgeAll removes packages with their configuration.
func (d *dpkg) purgeAll(names []string) error {
	for _, name := range names {
		err := d.purge(name)
		if err != nil {
			return err
		}
	}
	return d.save()
}

// flagsOfApt are those that gpuadm gives to apt-get, and --purge, which an operator does.
var flagsOfApt = []string{
	"--", "--print-uris", "--download-only", "--reinstall", "--purge",
	"--no-install-recommends", "--no-remove",
	"--allow-downgrades", "--allow-change-held-packages", "--allow-remove-essential",
}

func (m *machine) download(c catalog, what []string) error {
	for _, w := range what {
		name, version, _ := strings.Cut(w, "=")
		isWanted := func(o offer) bool { return o.Version == version }
		if !slices.ContainsFunc(c.offers(name), isWanted) {
			return m.fail("Can't find a source to download version '%s' of '%s'", version, name)
		}
		file := path.Join(m.options["env-C"], name+"_"+strings.ReplaceAll(version, ":", "%3a")+"_amd64.deb")
		if err := m.put(file, "deb "+name+" "+version+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// ask takes apt-get install's arguments: NAME=VERSION, NAME-, NAME, or a file.
func (s *solution) ask(args []string) error {
	for _, a := range args {
		name, version, exact := strings.Cut(a, "=")
		var err error
		switch {
		case strings.HasPrefix(a, "/"):
			err = s.askFile(a)
		case strings.HasSuffix(a, "-"):
			err = s.askRemoval(strings.TrimSuffix(name, "-"))
		case exact:
			err = s.askVersion(name, version)
		default:
			err = s.askCandidate(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// askFile installs a file, whose words are: deb NAME VERSION.
func (s *solution) askFile(file string) error {
	words := strings.Fields(s.m.text(file))
	if len(words) != 3 {
		return s.m.fail("Unsupported file %s given on commandline", file)
	}
	p := known(words[1], words[2])
	s.asked[p.Name] = true
	s.install[p.Name] = p
	return nil
}

func (s *solution) askRemoval(name string) error {
	if s.d.find(name) == nil && len(s.c.offers(name)) == 0 {
		return s.m.fail("Unable to locate package %s", name)
	}
	s.asked[name] = true
	if s.d.installed(name) != "" {
		s.remove[name] = true
	}
	return nil
}

func (s *solution) askVersion(name, version string) error {
	s.asked[name] = true
	if s.d.installed(name) == version {
		return nil
	}
	for _, o := range s.c.offers(name) {
		if o.Version == version {
			s.install[name] = o.pkg
			return nil
		}
	}
	return s.m.fail("Version '%s' for '%s' was not found", version, name)
}

func (s *solution) askCandidate(name string) error {
	s.asked[name] = true
	is := s.d.installed(name)
	o := s.c.candidate(name, is)
	if o.pkg == nil && is == "" {
		return s.m.fail("Unable to locate package %s", name)
	}
	if o.pkg != nil && o.Version != is {
		s.install[name] = o.pkg
	}
	return nil
}

func (r relation) fits(have string) bool {
	if r.op == "" {
		return true
	}
	if have == "" {
		return false
	}
	c := compare(have, r.version)
	switch r.op {
	case "=":
		return c == 0
	case ">=":
		return c >= 0
	case "<=":
		return c <= 0
	case "<<":
		return c < 0
	case ">>":
		return c > 0
	}
	return false
}

// A set is packages by what they give: their names, and what they provide.
type set struct {
	names []string
	named map[string]*pkg
	given map[string][]*pkg
}

// there are the packages that the machine has after the solution.
func (s *solution) there() set {
	all := set{
		named: map[string]*pkg{},
		given: map[string][]*pkg{},
	}
	for _, e := range s.d.list {
		if v := s.d.installed(e.name); v != "" && !s.remove[e.name] {
			all.named[e.name] = known(e.name, v)
		}
	}

	maps.Copy(all.named, s.install)
	all.names = slices.Sorted(maps.Keys(all.named))
	for _, name := range all.names {
		for _, r := range all.named[name].gives {
			all.given[r.name] = append(all.given[r.name], all.named[name])
		}
	}

	return all
}

// satisfies says whether a package is what a relation means, by name or by what it provides.
func (p *pkg) satisfies(want relation) bool {
	return slices.ContainsFunc(p.gives, func(g relation) bool {
		return g.name == want.name && want.fits(g.version)
	})
}

// lacks is the first dependency of a package that nothing there meets.
func (all set) lacks(p *pkg) []relation {
	isMet := func(r relation) bool {
		return slices.ContainsFunc(all.given[r.name], func(q *pkg) bool { return q.satisfies(r) })
	}
	for _, need := range p.needs {
		if !slices.ContainsFunc(need, isMet) {
			return need
		}
	}
	return nil
}

// solve brings dependencies, of each the candidate or none, removes what conflicts, and what then
// lacks something.
func (s *solution) solve() error {
	for range 200 {
		there := s.there()
		changed, err := s.completeInstalls(there)
		if err == nil && !changed {
			changed, err = s.removeBroken(there)
		}
		if err != nil || !changed {
			return err
		}
	}
	return s.m.fail("internal error of the simulated apt: it finds no end")
}

// completeInstalls makes one of the packages to install fit: it removes its rivals, or brings what it
// lacks. changed is false if all of them fit.
func (s *solution) completeInstalls(there set) (changed bool, err error) {
	for _, name := range slices.Sorted(maps.Keys(s.install)) {
		p := s.install[name]
		changed, err := s.removeRivals(p, there)
		if err != nil || changed {
			return changed, err
		}

		need := there.lacks(p)
		if need == nil {
			continue
		}
		if !s.bring(need) {
			return false, s.unmetNeed(name, need)
		}
		return true, nil
	}
	return false, nil
}

func (s *solution) removeRivals(p *pkg, there set) (changed bool, err error) {
	for _, other := range there.names {
		if other == p.Name || !rivals(p, there.named[other]) {
			continue
		}
		if s.asked[other] && !s.remove[other] {
			return false, s.unmet(p.Name, "Conflicts: "+other)
		}

		delete(s.install, other)
		if s.d.installed(other) != "" {
			s.remove[other] = true
		}
		changed = true
	}
	return changed, nil
}

// removeBroken removes one installed package that lacks something now. changed is false if none does.
func (s *solution) removeBroken(there set) (changed bool, err error) {
	for _, name := range there.names {
		need := there.lacks(there.named[name])
		_, isNew := s.install[name]
		if isNew || need == nil {
			continue
		}
		if s.asked[name] {
			return false, s.unmetNeed(name, need)
		}
		s.remove[name] = true
		return true, nil
	}
	return false, nil
}

// rivals says whether two packages cannot be there together.
func rivals(p, q *pkg) bool {
	return slices.ContainsFunc(p.against, q.satisfies) || slices.ContainsFunc(q.against, p.satisfies)
}

// bring installs the candidate of the first alternative that one meets.
func (s *solution) bring(need []relation) bool {
	for _, r := range need {
		if s.asked[r.name] {
			continue
		}
		for _, name := range append([]string{r.name}, providers()[r.name]...) {
			o := s.c.candidate(name, s.d.installed(name))
			if o.pkg == nil || !o.satisfies(r) || s.asked[name] {
				continue
			}
			s.install[o.Name] = o.pkg
			delete(s.remove, o.Name)
			return true
		}
	}
	return false
}

func (s *solution) unmetNeed(name string, need []relation) error {
	return s.unmet(name, fmt.Sprintf("Depends: %v but it is not going to be installed", need))
}

func (s *solution) unmet(name, why string) error {
	fmt.Fprintf(&s.m.out, "The following packages have unmet dependencies:\n %s : %s\n", name, why)
	return s.m.fail("Unable to correct problems, you have held broken packages.")
}

func (s *solution) print() {
	if s.m.options["APT::Get::HideAutoRemove"] == "false" {
		for _, name := range s.unneeded() {
			fmt.Fprintf(&s.m.out, "The following package was automatically installed and is no longer required:\n   %s (%s)\n", name, s.d.installed(name))
		}
	}

	for _, name := range slices.Sorted(maps.Keys(s.remove)) {
		fmt.Fprintf(&s.m.out, "The following packages will be REMOVED:\n   %s (%s)\n", name, s.d.installed(name))
	}
	for _, name := range slices.Sorted(maps.Keys(s.install)) {
		is := s.d.installed(name)
		to := s.install[name].Version
		if is != "" {
			fmt.Fprintf(&s.m.out, "The following packages will be upgraded:\n   %s (%s => %s)\n", name, is, to)
		} else {
			fmt.Fprintf(&s.m.out, "The following NEW packages will be installed:\n   %s (%s)\n", name, to)
		}
	}
}

// commit writes the marks before dpkg starts, as apt does. A package that was asked for becomes
// manual, new or not, without APT::Get::Mark-Auto: pkgDPkgPM::Go in apt-pkg/deb/dpkgpm.cc,
// pkgDepCache::MarkInstall in apt-pkg/depcache.cc.
func (s *solution) commit() error {
	marksAuto := s.m.options["APT::Get::Mark-Auto"] == "true"
	for name := range s.install {
		isManual := s.asked[name] && !marksAuto
		isNew := s.d.installed(name) == ""
		if isManual || isNew {
			s.d.auto[name] = !isManual
		}
	}

	if err := s.d.mark(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.remove)) {
		if err := s.d.remove(name); err != nil {
			return err
		}
	}

	for _, name := range slices.Sorted(maps.Keys(s.install)) {
		if err := s.d.unpack(s.install[name]); err != nil {
			return err
		}
	}

	for _, name := range slices.Sorted(maps.Keys(s.install)) {
		if err := s.d.configure(s.install[name]); err != nil {
			return err
		}
	}

	return s.d.save()
}
