// SPDX-License-Identifier: Apache-2.0

package ubuntu

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

const (
	status    = "/var/lib/dpkg/status"
	automatic = "/var/lib/apt/extended_states"
)

// dpkg is the database of packages: paragraphs in the order of the file, and apt's automatic marks.
type dpkg struct {
	m    *machine
	list []*entry
	auto map[string]bool
}

type entry struct{ name, version, status, text string }

func field(paragraph, key string) string {
	for line := range strings.Lines(paragraph) {
		if value, is := strings.CutPrefix(line, key+": "); is {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// dpkgProgram is dpkg(1), as far as --configure -a finishes what was begun.
func dpkgProgram(m *machine, args []string) error {
	if !slices.Contains(args, "--configure") {
		return nil
	}
	updates, _ := m.ReadDir("/var/lib/dpkg/updates")
	for _, name := range updates {
		if err := m.drop("/var/lib/dpkg/updates/" + name); err != nil {
			return err
		}
	}

	text := m.text(status)
	for _, begun := range []string{"half-configured", "unpacked", "half-installed"} {
		text = strings.ReplaceAll(text, "Status: install ok "+begun, "Status: install ok installed")
	}
	return m.put(status, text)
}

func (m *machine) dpkg() *dpkg {
	d := &dpkg{m, nil, map[string]bool{}}
	for text := range strings.SplitSeq(strings.TrimSpace(m.text(status)), "\n\n") {
		d.list = append(d.list, &entry{field(text, "Package"), field(text, "Version"), field(text, "Status"), text})
	}
	for text := range strings.SplitSeq(m.text(automatic), "\n\n") {
		if field(text, "Auto-Installed") == "1" {
			d.auto[field(text, "Package")] = true
		}
	}

	return d
}

func (d *dpkg) find(name string) *entry {
	i := slices.IndexFunc(d.list, func(e *entry) bool { return e.name == name })
	if i < 0 {
		return nil
	}
	return d.list[i]
}

// installed is the version that is installed, "" for none. Like apt it counts a package that is only
// unpacked, or whose scripts did not end: debListParser::ParseStatus in apt-pkg/deb/deblistparser.cc.
func (d *dpkg) installed(name string) string {
	e := d.find(name)
	if e == nil || strings.HasSuffix(e.status, " config-files") || strings.HasSuffix(e.status, " not-installed") {
		return ""
	}
	return e.version
}

// held says whether apt is told to leave a package as it is.
func (d *dpkg) held(name string) bool {
	e := d.find(name)
	return e != nil && strings.HasPrefix(e.status, "hold ")
}

func (d *dpkg) set(name, version, state string) {
	e := d.find(name)
	if e == nil {
		e = &entry{name: name}
		d.list = append(d.list, e)
	}
	if e.text != "" && e.version == version {
		e.text, e.status = strings.Replace(e.text, "\nStatus: "+e.status, "\nStatus: "+state, 1), state
		return
	}
	e.version, e.status = version, state
	e.text = fmt.Sprintf("Package: %s\nStatus: %s\nMaintainer: lab <lab@example.invalid>\nArchitecture: amd64\nVersion: %s\nDescription: %s", name, state, version, name)
}

// save writes them by name, as dpkg does: writedb_records in lib/dpkg/dump.c of its tree.
func (d *dpkg) save() error {
	slices.SortFunc(d.list, func(a, b *entry) int { return strings.Compare(a.name, b.name) })
	var b strings.Builder
	for _, e := range d.list {
		b.WriteString(e.text + "\n\n")
	}
	if err := d.m.put(status, b.String()); err != nil {
		return err
	}
	return d.mark()
}

func (d *dpkg) mark() error {
	var marks strings.Builder
	for _, name := range slices.Sorted(maps.Keys(d.auto)) {
		if d.auto[name] {
			fmt.Fprintf(&marks, "Package: %s\nArchitecture: amd64\nAuto-Installed: 1\n\n", name)
		}
	}

	if marks.Len() == 0 && !d.m.has(automatic) {
		return nil
	}
	return d.m.put(automatic, marks.String())
}

// Packages is what is installed, one a line: name, version, status, automatic or not.
func Packages(f *files.Files) string {
	m := &machine{Files: f}
	d := m.dpkg()
	var lines []string
	for _, e := range d.list {
		lines = append(lines, fmt.Sprintf("%s %s %s auto=%v\n", e.name, e.version, e.status, d.auto[e.name]))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func aptMark(m *machine, args []string) error {
	d := m.dpkg()
	for _, name := range args[2:] {
		e := d.find(name)
		if e == nil {
			return m.fail("Can't select installed package %s: it is not installed", name)
		}
		_, rest, _ := strings.Cut(e.status, " ")
		switch args[0] {
		case "hold":
			d.set(name, e.version, "hold "+rest)
		case "unhold":
			d.set(name, e.version, "install "+rest)
		case "auto", "manual":
			d.auto[name] = args[0] == "auto"
		}
	}

	return d.save()
}

// unpack puts a package's files in the place of those of its older version, and does what its
// scripts do.
func (d *dpkg) unpack(p *pkg) error {
	if was := d.installed(p.Name); was != "" {
		if err := d.clear(known(p.Name, was), p.Files); err != nil {
			return err
		}
	}

	var lines string
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		f := p.Files[name]
		lines += name + "\n"
		if strings.HasPrefix(name, "/etc/") && d.m.has(name) {
			continue // a conffile that is there stays
		}
		if err := d.m.folders(path.Dir(name)); err != nil {
			return err
		}
		if f.Link != "" {
			if err := d.m.Symlink(name, f.Link); err != nil {
				return err
			}
			continue
		}

		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		if err := d.m.WriteFile(name, []byte(f.Text), host.Attr{Mode: mode}); err != nil {
			return err
		}
	}

	if err := d.m.put("/var/lib/dpkg/info/"+p.Name+".list", lines); err != nil {
		return err
	}
	held := "install"
	if d.held(p.Name) {
		held = "hold"
	}
	d.set(p.Name, p.Version, held+" ok installed")
	return nil
}

// configure is what the scripts do after all is unpacked: dkms builds for each kernel that has
// headers. dkms's own script fails no package.
func (d *dpkg) configure(p *pkg) error {
	for name := range p.Files {
		if unit, is := strings.CutPrefix(name, "/usr/lib/systemd/system/"); is {
			link := "/etc/systemd/system/multi-user.target.wants/" + unit
			if err := d.m.folders(path.Dir(link)); err != nil {
				return err
			}
			if _, err := d.m.Lstat(link); err != nil {
				if err := d.m.Symlink(link, name); err != nil {
					return err
				}
			}
		}
	}

	if strings.HasPrefix(p.Name, "gpuadm-modules-") {
		return d.m.depmod()
	}
	if !strings.Contains(p.After, "/usr/lib/dkms/common.postinst") {
		return nil
	}
	v := upstream(p.Version)
	if err := dkms(d.m, []string{"add", "-m", "nvidia", "-v", v}); err != nil {
		return err
	}
	for _, kernel := range d.m.kernels() {
		if err := dkms(d.m, []string{"install", "-m", "nvidia", "-v", v, "-k", kernel}); err != nil {
			fmt.Fprintf(&d.m.err, "Error! Bad return status for module build on kernel: %s (x86_64)\n", kernel)
		}
	}

	return nil
}

// clear takes a package's files away, all but those that its next version has too.
func (d *dpkg) clear(p *pkg, next map[string]repos.File) error {
	if strings.Contains(p.Gone, "dkms remove") {
		if err := dkms(d.m, []string{"remove", "-m", "nvidia", "-v", upstream(p.Version), "--all"}); err != nil {
			return err
		}
	}

	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		_, stays := next[name]
		taken := slices.ContainsFunc(d.list, func(e *entry) bool { // Replaces: of deb-control(5): the other package has it since
			_, has := known(e.name, d.installed(e.name)).Files[name]
			return has && e.name != p.Name
		})
		if strings.HasPrefix(name, "/etc/") || taken {
			continue
		}
		if err := d.m.drop(name); err != nil {
			return err
		}
		if unit, is := strings.CutPrefix(name, "/usr/lib/systemd/system/"); is && !stays {
			if err := d.m.drop("/etc/systemd/system/multi-user.target.wants/" + unit); err != nil {
				return err
			}
		}
	}

	if strings.HasPrefix(p.Name, "gpuadm-modules-") {
		return d.m.depmod()
	}
	return nil
}

// remove takes a package away. Its conffiles stay until it is purged: deb-conffiles(5).
func (d *dpkg) remove(name string) error {
	delete(d.auto, name)
	p := known(name, d.installed(name))
	if err := d.clear(p, nil); err != nil {
		return err
	}
	for file := range p.Files {
		if strings.HasPrefix(file, "/etc/") {
			d.set(name, p.Version, "deinstall ok config-files")
			return nil
		}
	}

	return d.forget(name)
}

func (d *dpkg) forget(name string) error {
	d.list = slices.DeleteFunc(d.list, func(e *entry) bool { return e.name == name })
	return d.m.drop("/var/lib/dpkg/info/" + name + ".list")
}

func (d *dpkg) purge(name string) error {
	e := d.find(name)
	if e == nil {
		return nil
	}
	p := known(name, e.version)
	if d.installed(name) != "" {
		if err := d.remove(name); err != nil {
			return err
		}
	}

	for file := range p.Files {
		if strings.HasPrefix(file, "/etc/") {
			if err := d.m.drop(file); err != nil {
				return err
			}
		}
	}

	return d.forget(name)
}
