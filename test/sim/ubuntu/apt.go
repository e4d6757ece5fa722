// SPDX-License-Identifier: Apache-2.0

package ubuntu

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	version "github.com/knqyf263/go-deb-version"
)

// A source is one entry of apt's list of sources.
type source struct {
	file, uri, suite, signedBy string
	components                 []string
}

// sources reads what apt reads: sources.list(5). Two entries of one place that are trusted by
// different keys make apt refuse all of them: apt-pkg/deb/debmetaindex.cc.
func (m *machine) sources() (all []source, err error) {
	files := []string{cmp.Or(m.options["Dir::Etc::sourcelist"], "/etc/apt/sources.list")}
	for _, name := range m.under(cmp.Or(m.options["Dir::Etc::sourceparts"], "/etc/apt/sources.list.d")) {
		if e := path.Ext(name); e == ".list" || e == ".sources" {
			files = append(files, name)
		}
	}

	for _, file := range files {
		if strings.HasSuffix(file, ".sources") {
			all = append(all, deb822(file, m.text(file))...)
			continue
		}
		for line := range strings.Lines(m.text(file)) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
			rest, is := strings.CutPrefix(line, "deb ")
			if !is {
				continue
			}
			s := source{file: file}
			if options, after, has := strings.Cut(rest, "]"); has {
				rest = after
				for _, o := range strings.Fields(strings.Trim(options, " [")) {
					if value, is := strings.CutPrefix(o, "signed-by="); is {
						s.signedBy = value
					}
				}
			}

			words := strings.Fields(rest)
			s.uri, s.suite, s.components = words[0], words[1], words[2:]
			all = append(all, s)
		}
	}

	for i, s := range all {
		all[i].uri = strings.TrimSuffix(s.uri, "/") + "/"
		for _, o := range all[:i] {
			if o.uri == all[i].uri && o.suite == s.suite && o.signedBy != s.signedBy {
				m.fail("Conflicting values set for option Signed-By regarding source %s %s: %s != %s", o.uri, o.suite, s.signedBy, o.signedBy)
				return nil, m.fail("The list of sources could not be read.")
			}
		}
	}

	return all, nil
}

func deb822(file, text string) (all []source) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		said, last := map[string]string{}, ""
		for line := range strings.Lines(paragraph) {
			if line[0] == ' ' || line[0] == '\t' { // deb822(5): a field goes on
				said[last] += " " + strings.TrimSpace(line)
			} else if key, value, ok := strings.Cut(line, ":"); ok && line[0] != '#' {
				last = strings.ToLower(key)
				said[last] = strings.TrimSpace(value)
			}
		}

		if slices.Contains([]string{"no", "false", "0", "off", "without", "disable"}, strings.ToLower(said["enabled"])) || !slices.Contains(strings.Fields(said["types"]), "deb") {
			continue // sources.list(5)
		}
		for _, uri := range strings.Fields(said["uris"]) {
			for _, suite := range strings.Fields(said["suites"]) {
				all = append(all, source{file, uri, suite, said["signed-by"], strings.Fields(said["components"])})
			}
		}
	}
	return all
}

// list is the file that apt keeps the source's signed list in.
func (s source) list() string {
	at := s.uri
	if s.suite != "/" {
		at += "dists/" + s.suite + "/"
	}
	_, at, _ = strings.Cut(at, "://")
	return "/var/lib/apt/lists/" + strings.ReplaceAll(at, "/", "_") + "InRelease"
}

// serves is where the simulated net says which edition a repository serves, and with which key.
func (s source) serves() string {
	_, at, _ := strings.Cut(s.uri, "://")
	return "/simulated-net/" + at + "serves"
}

func (m *machine) update() error {
	all, err := m.sources()
	if err != nil {
		return err
	}
	failed := false
	keep := map[string]bool{}
	for _, s := range all {
		keep[s.list()] = true
		serves := strings.Fields(m.text(s.serves())) // the edition, and the keys that sign it
		switch trusted := dearmor(m.text(s.signedBy)); {
		case len(serves) < 2:
			m.fail("Failed to fetch %sInRelease  404  Not Found", s.uri)
			failed = true
		case !slices.ContainsFunc(serves[1:], func(key string) bool { return strings.Contains(trusted, dearmor(m.text(key))) }):
			m.fail("The repository '%s %s InRelease' is not signed: GPG error: NO_PUBKEY", s.uri, s.suite)
			failed = true
		default:
			if err := m.put(s.list(), serves[0]+"\n"); err != nil {
				return err
			}
		}
	}

	if m.options["APT::Get::List-Cleanup"] != "0" {
		for _, file := range m.under("/var/lib/apt/lists") {
			if !keep[file] && strings.HasSuffix(file, "InRelease") {
				if err := m.Remove(file); err != nil {
					return err
				}
			}
		}
	}

	if failed {
		return m.fail("Some index files failed to download.")
	}
	return nil
}

// An offer is a version of a package that apt can install.
type offer struct {
	*pkg
	from     source
	origin   string
	label    string
	suite    string
	priority int
}

type pin struct {
	names    []string
	pin      string
	priority int
}

// pins are apt's records of preferences in the order in which they count: apt_preferences(5), and
// ReadPinFile in apt-pkg/policy.cc.
func (m *machine) pins() (all []pin) {
	for _, file := range append([]string{cmp.Or(m.options["Dir::Etc::Preferences"], "/etc/apt/preferences")}, m.under("/etc/apt/preferences.d")...) {
		for paragraph := range strings.SplitSeq(m.text(file), "\n\n") {
			p := pin{}
			for line := range strings.Lines(paragraph) {
				switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
				case "Package":
					p.names = strings.Fields(value)
				case "Pin":
					p.pin = value
				case "Pin-Priority":
					fmt.Sscan(value, &p.priority)
				}
			}

			if p.pin != "" {
				all = append(all, p)
			}
		}
	}
	return all
}

func (p pin) fits(o offer) bool {
	if !slices.ContainsFunc(p.names, func(glob string) bool { ok, _ := path.Match(glob, o.Name); return ok }) {
		return false
	}
	kind, what, _ := strings.Cut(p.pin, " ")
	switch kind {
	case "version":
		ok, _ := path.Match(what, o.Version)
		return ok
	case "release": // apt_preferences(5)
		for one := range strings.SplitSeq(what, ",") {
			key, glob, _ := strings.Cut(strings.TrimSpace(one), "=")
			is, known := map[string]string{"o": o.origin, "l": o.label, "c": o.Component, "n": o.suite, "a": o.suite}[key]
			if ok, _ := path.Match(glob, is); !known || !ok {
				return false
			}
		}
		return true
	case "origin":
		return strings.Contains(o.from.uri, strings.Trim(what, `"*`))
	}

	return false
}

// A catalog is what the lists that were read offer.
type catalog struct {
	sources []source
	lists   []string // the editions that were read
	pins    []pin
}

func (m *machine) catalog() (c catalog, err error) {
	if c.sources, err = m.sources(); err != nil {
		return c, err
	}
	for _, s := range c.sources {
		c.lists = append(c.lists, strings.TrimSpace(m.text(s.list())))
	}
	c.pins = m.pins()
	return c, nil
}

// offers are the versions of a package, by priority and then the newest first.
func (c catalog) offers(name string) (all []offer) {
	for i, s := range c.sources {
		e := editions()[c.lists[i]]
		for _, p := range e.packages[name] {
			if len(s.components) > 0 && !slices.Contains(s.components, p.Component) || s.suite != "/" && s.suite != "noble" {
				continue
			}
			o := offer{p, s, e.origin, e.label, strings.Trim(s.suite, "/"), 500}
			if i := slices.IndexFunc(c.pins, func(p pin) bool { return p.fits(o) }); i >= 0 {
				o.priority = c.pins[i].priority
			}
			all = append(all, o)
		}
	}

	slices.SortStableFunc(all, func(a, b offer) int {
		return cmp.Or(b.priority-a.priority, compare(b.Version, a.Version))
	})
	return all
}

// compare orders versions as deb-version(7) says.
func compare(a, b string) int {
	x, err1 := version.NewVersion(a)
	y, err2 := version.NewVersion(b)
	if err1 != nil || err2 != nil {
		return strings.Compare(a, b)
	}
	return x.Compare(y)
}

func aptCache(m *machine, args []string) error {
	c, err := m.catalog()
	if err != nil {
		return err
	}
	names := args[1:]
	if len(names) > 0 && names[0] == "--" {
		names = names[1:]
	}
	d := m.dpkg()
	for _, name := range names {
		switch args[0] {
		case "policy":
			m.policy(c, d, name)
		case "show":
			if err := m.show(c, name); err != nil {
				return err
			}
		}
	}

	if args[0] != "search" && args[0] != "pkgnames" {
		return nil
	}
	for i := range c.sources {
		for name := range editions()[c.lists[i]].packages {
			if args[0] == "pkgnames" {
				fmt.Fprintln(&m.out, name)
			} else if strings.HasPrefix(name, strings.TrimPrefix(names[len(names)-1], "^")) {
				fmt.Fprintf(&m.out, "%s - modules\n", name)
			}
		}
	}

	return nil
}

// show prints the paragraph of NAME=VERSION, as apt-cache show does; it prints nothing and exits
// with 0 for another version.
func (m *machine) show(c catalog, what string) error {
	name, version, _ := strings.Cut(what, "=")
	offers := c.offers(name)
	if len(offers) == 0 {
		return m.fail("No packages found")
	}

	for _, o := range offers {
		if o.Version == version {
			fmt.Fprintln(&m.out, paragraph(o.pkg))
			return nil
		}
	}
	return nil
}

// paragraph is a package as an index and the database have it, with the relations that the lab's
// packages are built with.
func paragraph(of *pkg) string {
	var w strings.Builder
	fmt.Fprintf(&w, "Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: x <x@example.invalid>\nDescription: x\n", of.Name, of.Version)
	for _, field := range []struct {
		name string
		list []string
	}{
		{"Pre-Depends", of.PreDepends},
		{"Depends", of.Depends},
		{"Provides", slices.Concat(of.Provides, of.Instead)},
		{"Conflicts", slices.Concat(of.Conflicts, of.Instead)},
		{"Replaces", of.Instead},
	} {
		if len(field.list) > 0 {
			fmt.Fprintf(&w, "%s: %s\n", field.name, strings.Join(field.list, ", "))
		}
	}

	return w.String()
}

// policy prints what apt-cache policy does: versions with their priority, and under each where it
// is.
func (m *machine) policy(c catalog, d *dpkg, name string) {
	is := d.installed(name)
	all := c.offers(name)
	if is == "" && len(all) == 0 {
		return
	}
	fmt.Fprintf(&m.out, "%s:\n  Installed: %s\n  Candidate: %s\n  Version table:\n", name, cmp.Or(is, "(none)"), c.candidate(name, is).version())
	printed := map[string]bool{}
	line := func(version string, priority int) {
		star := "    "
		if version == is {
			star = "*** "
		}
		fmt.Fprintf(&m.out, " %s%s %d\n", star, version, priority)
	}

	for _, o := range all {
		if printed[o.Version] {
			continue
		}
		printed[o.Version] = true
		line(o.Version, o.priority)
		for _, same := range all {
			if same.Version == o.Version {
				fmt.Fprintf(&m.out, "        %d %s %s/%s amd64 Packages\n", same.priority, strings.TrimSuffix(same.from.uri, "/"), same.from.suite, same.Component)
			}
		}

		if o.Version == is {
			fmt.Fprintf(&m.out, "        100 /var/lib/dpkg/status\n")
		}
	}

	if is != "" && !printed[is] {
		line(is, 100)
		fmt.Fprintf(&m.out, "        100 /var/lib/dpkg/status\n")
	}
}

// version is the offer's, or apt's word for none.
func (o offer) version() string {
	if o.pkg == nil {
		return "(none)"
	}
	return o.Version
}

// candidate is the version that apt would install: of the highest priority, never an older one
// below 1000.
func (c catalog) candidate(name, is string) offer {
	for _, o := range c.offers(name) {
		if o.priority >= 0 && (is == "" || o.priority >= 1000 || compare(o.Version, is) >= 0) {
			return o
		}
	}
	return offer{}
}
