// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Where dpkg and apt keep their databases: dpkg(1) and apt-get(8), "FILES".
const (
	dpkgUpdates  = "/var/lib/dpkg/updates" // changes that an interrupted dpkg has not yet merged into status
	dpkgArch     = "/var/lib/dpkg/arch"
	dpkgLock     = "/var/lib/dpkg/lock" // dpkg holds it; a program that runs dpkg holds lock-frontend: doc/frontend.txt in dpkg's tree, dpkg(1)
	aptExtStates = "/var/lib/apt/extended_states"
)

// A dpkg is dpkg's database, by name; foreign ones are "name:arch".
type dpkg struct {
	packages    map[string]packages.State
	read        [][]byte // the texts that it was read from: see details
	native      string   // architecture
	interrupted bool
}

// readDpkg reads the database: the status file, what an interrupted dpkg left beside it, and apt's
// automatic marks.
func readDpkg(v host.View) (dpkg, error) {
	status, err := v.ReadFile(facts.DpkgStatus)
	if err != nil {
		return dpkg{}, fmt.Errorf("cannot read dpkg's database: %w", err)
	}
	d := dpkg{packages: make(map[string]packages.State, len(status)/each), native: nativeArch(v, status)}
	d.read = append(d.read, status)
	d.add(status)
	return d, d.beside(v)
}

// each is a low estimate of the bytes in a paragraph of the status file.
const each = 800

// beside adds the files beside the status file.
func (d *dpkg) beside(v host.View) error {
	updates, err := updatesLeft(v)
	if err != nil {
		return err
	}
	d.interrupted = len(updates) > 0
	for _, name := range updates {
		update, err := v.ReadFile(dpkgUpdates + "/" + name)
		if err != nil {
			return err
		}
		d.read = append(d.read, update)
		d.add(update)
	}
	marks, err := v.ReadFile(aptExtStates)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.mark(marks)
	return nil
}

// updatesLeft lists the files that an interrupted dpkg has left; beside them dpkg writes tmp.i,
// which does not count yet.
func updatesLeft(v host.View) ([]string, error) {
	names, err := v.ReadDir(dpkgUpdates)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.Trim(name, "0123456789") != "" }), nil
}

// nativeArch returns the first line of dpkg's list of architectures, which exists only with foreign
// ones, else the dpkg package's own.
func nativeArch(v host.View, status []byte) string {
	if list, err := v.ReadFile(dpkgArch); err == nil {
		if first := strings.Fields(string(list)); len(first) > 0 {
			return first[0]
		}
	}
	var arch []byte
	for e := range entries(status) {
		if string(e.arch) != "all" {
			arch = e.arch
		}
		if string(e.name) == "dpkg" {
			break
		}
	}
	return string(arch)
}

// An entry is a package as dpkg's database, apt's of automatic marks, or a source's index has it.
type entry struct {
	name, arch, version, status, auto []byte

	essential bool // or protected: it may not be removed
	conffiles bool
}

// entries reads the paragraphs of a database, which has 1 MB and more, in one pass.
func entries(text []byte) iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for paragraph := range paragraphs(text) {
			if !yield(entryOf(paragraph)) {
				return
			}
		}
	}
}

func entryOf(paragraph []byte) (e entry) {
	for key, value := range fields(paragraph) {
		switch string(key) {
		case "Package":
			e.name = value
		case "Status":
			e.status = value
		case "Architecture":
			e.arch = value
		case "Version":
			e.version = value
		case "Auto-Installed":
			e.auto = value
		case "Essential", "Protected", "Important": // "Important" is apt's, from before dpkg knew "Protected"
			e.essential = e.essential || string(value) == "yes"
		case "Conffiles":
			e.conffiles = true
		}
	}
	return e
}

// add adds the entries of paragraphs. A later entry replaces an earlier one. All names and versions
// share one string, which has about a 24th of the text's size.
func (d *dpkg) add(text []byte) {
	var kept strings.Builder
	kept.Grow(len(text) / 24)
	keep := func(b []byte) string {
		start := kept.Len()
		kept.Write(b)
		return kept.String()[start:]
	}
	for e := range entries(text) {
		if name := d.key(e.name, e.arch); len(name) > 0 {
			d.packages[keep(name)] = dpkgState(keep(e.version), e.status)
		}
	}
}

// details returns the whole entry of a package. gpuadm asks for few entries, and only where
// packages are to change: so details searches the text, and a look does not parse them.
func (d *dpkg) details(name string) (last entry) {
	for _, text := range d.read {
		for e := range entries(text) {
			if string(d.key(e.name, e.arch)) == name {
				last = e
			}
		}
	}
	return last
}

// key is what apt calls a package.
func (d *dpkg) key(name, arch []byte) []byte {
	if string(arch) == d.native || string(arch) == "all" || len(arch) == 0 || len(name) == 0 {
		return name
	}
	return slices.Concat(name, []byte(":"), arch)
}

// dpkgState reads "WANT FLAG STATUS": "hold ok installed".
func dpkgState(version string, status []byte) packages.State {
	if string(status) == "install ok installed" && version != "" { // nearly all
		return packages.State{Version: version}
	}
	w := strings.Fields(string(status))
	if len(w) != 3 {
		return packages.State{}
	}
	st := packages.State{Version: version, Held: w[0] == "hold"}
	switch {
	case w[2] == "not-installed":
		st.Version = ""
		if st.Held {
			st.Version = packages.Nowhere
		}
	case w[1] == "reinstreq": // whatever the status: dpkg(1), "Package flags"
		st.Broken = "half-installed"
	case w[2] != "installed":
		st.Broken = w[2]
	}
	if st.Version == "" && w[2] != "not-installed" { // half-installed for the first time: it has no version yet
		st.Version = packages.Nowhere
	}
	return st
}

// without returns the state of a package after its removal: dpkg keeps a package's entry as long as
// it has configuration files, or a script to run when it is purged.
func (d *dpkg) without(v host.View, name string) converge.State {
	p := d.packages[name]
	if !p.Installed() {
		return p.String()
	}
	more := d.details(name)
	remains := more.conffiles
	bare, _, _ := strings.Cut(name, ":")
	for _, script := range []string{bare, bare + ":" + string(more.arch)} { // the name has the architecture if the package can be installed for several
		if _, err := v.Stat("/var/lib/dpkg/info/" + script + ".postrm"); err == nil {
			remains = true
		}
	}
	if remains {
		return packages.State{Version: p.Version, Broken: packages.ConfigFiles}.String()
	}
	return ""
}

// mark adds apt's automatic marks.
func (d *dpkg) mark(text []byte) {
	for e := range entries(text) {
		name := d.key(e.name, e.arch)
		if one, ok := d.packages[string(name)]; ok && string(e.auto) == "1" && one.Installed() {
			one.Auto = true
			d.packages[string(name)] = one
		}
	}
}

// paragraphs goes through text in the form of deb822(5).
func paragraphs(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(text) > 0 {
			paragraph, rest, _ := bytes.Cut(text, []byte("\n\n"))
			text = rest
			if len(bytes.TrimSpace(paragraph)) > 0 && !yield(paragraph) {
				return
			}
		}
	}
}

// fields goes through the fields of a paragraph, with the lines that continue a value.
func fields(paragraph []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for len(paragraph) > 0 {
			end := endOfField(paragraph)
			key, value, ok := bytes.Cut(paragraph[:end], []byte(":"))
			if c := paragraph[0]; ok && c != ' ' && c != '\t' && c != '#' && !yield(key, bytes.TrimSpace(value)) {
				return
			}
			paragraph = paragraph[end:]
		}
	}
}

// endOfField returns where the field ends: at the first line that neither continues it nor is a
// comment.
func endOfField(text []byte) int {
	for at := 0; ; {
		line := bytes.IndexByte(text[at:], '\n') + 1
		if at += line; line == 0 || at == len(text) {
			return len(text)
		}
		if c := text[at]; c != ' ' && c != '\t' && c != '#' {
			return at
		}
	}
}

// FilesOf reads dpkg's lists; a package that can be installed for several architectures has its own
// in the name: dpkg-query(1).
func (apt) FilesOf(_ context.Context, v host.View, names []string) (all map[string][]string, err error) {
	all, native := map[string][]string{}, architecture(v)
	for _, name := range names {
		bare, arch, _ := strings.Cut(name, ":")
		lists := []string{"/var/lib/dpkg/info/" + bare + ".list", "/var/lib/dpkg/info/" + bare + ":" + cmp.Or(arch, native) + ".list"}
		if all[name], err = packages.ReadAll(v, lists, func(_ string, text []byte) []string { return strings.Fields(string(text)) }); err != nil {
			return nil, err
		}
	}
	return all, nil
}
