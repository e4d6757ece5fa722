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

func aptGet(m *machine, args []string) error {
	asks := slices.Contains(args, "--print-uris")
	flags := slices.DeleteFunc(slices.Clone(args), func(a string) bool {
		return !strings.HasPrefix(a, "--")
	})
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool {
		return a == "-y" || a == "-q" || a == "-V" || strings.HasPrefix(a, "--")
	})
	for _, f := range flags {
		if !slices.Contains(flagsOfApt, f) {
			return m.fail("Command line option %s is not understood in combination with the other options", f)
		}
	}

	if args[0] == "update" {
		return m.update()
	}
	c, err := m.catalog()
	if err != nil {
		return err
	}
	d := m.dpkg()
	switch args[0] {
	case "purge":
		for _, name := range args[1:] {
			if err := d.purge(name); err != nil {
				return err
			}
		}
		return d.save()
	case "download":
		return m.download(c, args[1:])
	}

	s := solution{m, c, d, map[string]*pkg{}, map[string]bool{}, map[string]bool{}}
	if args[0] == "remove" { // apt-get(8)
		for i, name := range args[1:] {
			args[1+i] = strings.TrimSuffix(name, "-") + "-"
		}
	}

	if err := s.ask(args[1:]); err != nil {
		return err
	}
	if args[0] == "autoremove" {
		s.autoremove()
	} else if err := s.solve(); err != nil {
		return err
	}

	if asks {
		s.print()
	}
	for name, p := range s.install {
		if is := d.installed(name); is != "" && compare(p.Version, is) < 0 && !slices.Contains(flags, "--allow-downgrades") {
			return m.fail("Packages were downgraded and -y was used without --allow-downgrades.")
		}
	}

	for _, name := range slices.Concat(slices.Collect(maps.Keys(s.install)), slices.Collect(maps.Keys(s.remove))) {
		if d.held(name) && !slices.Contains(flags, "--allow-change-held-packages") {
			return m.fail("Held packages were changed and -y was used without --allow-change-held-packages.")
		}
	}

	if len(s.remove) > 0 && slices.Contains(flags, "--no-remove") {
		return m.fail("Packages need to be removed but remove is disabled.")
	}
	if asks {
		return nil
	}
	if err := s.commit(); err != nil || !slices.Contains(flags, "--purge") {
		return err
	}
	for name := range s.remove {
		if err := d.purge(name); err != nil {
			return err
		}
	}

	return d.save()
}

// flagsOfApt are those that gpuadm gives to apt-get, and --purge, which an operator does.
var flagsOfApt = []string{
	"--", "--print-uris", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages", "--allow-remove-essential", "--no-remove", "--reinstall", "--download-only", "--purge",
}

func (m *machine) download(c catalog, what []string) error {
	for _, w := range what {
		name, version, _ := strings.Cut(w, "=")
		if !slices.ContainsFunc(c.offers(name), func(o offer) bool { return o.Version == version }) {
			return m.fail("Can't find a source to download version '%s' of '%s'", version, name)
		}
		file := path.Join(m.options["env-C"], name+"_"+strings.ReplaceAll(version, ":", "%3a")+"_amd64.deb")
		if err := m.put(file, "deb "+name+" "+version+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// ask takes apt-get install's arguments: NAME=VERSION, NAME-, or a file.
func (s *solution) ask(args []string) error {
	for _, a := range args {
		name, version, exact := strings.Cut(a, "=")
		switch {
		case strings.HasPrefix(a, "/"):
			words := strings.Fields(s.m.text(a))
			if len(words) != 3 {
				return s.m.fail("Unsupported file %s given on commandline", a)
			}
			p := known(words[1], words[2])
			s.asked[p.Name], s.install[p.Name] = true, p
		case strings.HasSuffix(a, "-"):
			name = strings.TrimSuffix(a, "-")
			if s.d.find(name) == nil && len(s.c.offers(name)) == 0 {
				return s.m.fail("Unable to locate package %s", name)
			}
			if s.asked[name] = true; s.d.installed(name) != "" {
				s.remove[name] = true
			}
		case !exact:
			s.asked[name] = true
			o := s.c.candidate(name, s.d.installed(name))
			if o.pkg == nil && s.d.installed(name) == "" {
				return s.m.fail("Unable to locate package %s", a)
			}
			if o.pkg != nil && o.Version != s.d.installed(name) {
				s.install[name] = o.pkg
			}
		default:
			s.asked[name] = true
			if s.d.installed(name) == version {
				continue
			}
			all := s.c.offers(name)
			i := slices.IndexFunc(all, func(o offer) bool { return o.Version == version })
			if i < 0 {
				return s.m.fail("Version '%s' for '%s' was not found", version, name)
			}
			s.install[name] = all[i].pkg
		}
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
	return r.op == "=" && c == 0 || r.op == ">=" && c >= 0 || r.op == "<=" && c <= 0 || r.op == "<<" && c < 0 || r.op == ">>" && c > 0
}

// A set is packages by what they give: their names, and what they provide.
type set struct {
	names []string
	named map[string]*pkg
	given map[string][]*pkg
}

// there are the packages that the machine has after the solution.
func (s *solution) there() set {
	all := set{nil, map[string]*pkg{}, map[string][]*pkg{}}
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
	for _, need := range p.needs {
		if !slices.ContainsFunc(need, func(r relation) bool {
			return slices.ContainsFunc(all.given[r.name], func(q *pkg) bool { return q.satisfies(r) })
		}) {
			return need
		}
	}
	return nil
}

// solve brings dependencies, of each the candidate or none, removes what conflicts, and what then
// lacks something.
func (s *solution) solve() error {
	for range 200 {
		there, more := s.there(), false
		for _, name := range slices.Sorted(maps.Keys(s.install)) {
			p := s.install[name]
			for _, other := range there.names {
				if other == name || !rivals(p, there.named[other]) {
					continue
				}
				if s.asked[other] && !s.remove[other] {
					return s.unmet(name, "Conflicts: "+other)
				}
				delete(s.install, other)
				if s.d.installed(other) != "" {
					s.remove[other] = true
				}
				more = true
			}

			if more {
				break
			}
			if need := there.lacks(p); need != nil {
				if !s.bring(need) {
					return s.unmet(name, fmt.Sprintf("Depends: %v but it is not going to be installed", need))
				}
				more = true
				break
			}
		}

		if more {
			continue
		}
		for _, name := range there.names {
			need := there.lacks(there.named[name])
			if _, new := s.install[name]; new || need == nil {
				continue
			}
			if s.asked[name] {
				return s.unmet(name, fmt.Sprintf("Depends: %v but it is not going to be installed", need))
			}
			s.remove[name], more = true, true
			break
		}

		if !more {
			return nil
		}
	}
	return s.m.fail("internal error of the simulated apt: it finds no end")
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
			if o := s.c.candidate(name, s.d.installed(name)); o.pkg != nil && o.satisfies(r) && !s.asked[name] {
				s.install[o.Name] = o.pkg
				delete(s.remove, o.Name)
				return true
			}
		}
	}
	return false
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
		if is := s.d.installed(name); is != "" {
			fmt.Fprintf(&s.m.out, "The following packages will be upgraded:\n   %s (%s => %s)\n", name, is, s.install[name].Version)
		} else {
			fmt.Fprintf(&s.m.out, "The following NEW packages will be installed:\n   %s (%s)\n", name, s.install[name].Version)
		}
	}
}

// commit writes the marks before dpkg starts, as apt does. A package that was asked for becomes
// manual, new or not, without APT::Get::Mark-Auto: pkgDPkgPM::Go in apt-pkg/deb/dpkgpm.cc,
// pkgDepCache::MarkInstall in apt-pkg/depcache.cc.
func (s *solution) commit() error {
	for name := range s.install {
		if asked := s.asked[name] && s.m.options["APT::Get::Mark-Auto"] != "true"; asked || s.d.installed(name) == "" {
			s.d.auto[name] = !asked
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
