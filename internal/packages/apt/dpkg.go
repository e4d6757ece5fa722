// SPDX-License-Identifier: Apache-2.0

package apt

import (
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
	// dpkgUpdates has changes that an interrupted dpkg has not yet merged into status.
	dpkgUpdates = "/var/lib/dpkg/updates"
	dpkgArch    = "/var/lib/dpkg/arch"
	// dpkg holds dpkgLock; a program that runs dpkg holds lock-frontend: doc/frontend.txt in dpkg's
	// tree, dpkg(1).
	dpkgLock     = "/var/lib/dpkg/lock"
	aptExtStates = "/var/lib/apt/extended_states"
)

// A dpkg is dpkg's database, by name; foreign ones are "name:arch".
type dpkg struct {
	packages    map[string]packages.State
	paragraphs  map[string][]byte // the entry of each package, as text
	texts       [][]byte          // that it was read from: see details
	native      string            // architecture
	interrupted bool
}

// readDpkg reads the database: the status file, the updates that an interrupted dpkg left, and
// apt's automatic marks.
func readDpkg(v host.View) (dpkg, error) {
	status, err := v.ReadFile(facts.DpkgStatus)
	if err != nil {
		return dpkg{}, fmt.Errorf("cannot read dpkg's database: %w", err)
	}
	d := dpkg{
		packages:   make(map[string]packages.State, len(status)/paragraphSize),
		paragraphs: make(map[string][]byte, len(status)/paragraphSize),
		native:     nativeArch(v, status),
	}
	d.addText(status)
	return d, d.addOthers(v)
}

// paragraphSize is a low estimate of the bytes in a paragraph of the status file.
const paragraphSize = 800

func (d *dpkg) addText(text []byte) {
	d.texts = append(d.texts, text)
	d.add(text)
}

// addOthers adds the updates that an interrupted dpkg left, apt's automatic marks, and the marks of
// packages that lack a dependency.
func (d *dpkg) addOthers(v host.View) error {
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
		d.addText(update)
	}

	marks, err := v.ReadFile(aptExtStates)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.mark(marks)
	d.markIncomplete()
	return nil
}

// updatesLeft lists the files that an interrupted dpkg has left. In the same folder dpkg writes
// tmp.i, which does not count yet.
func updatesLeft(v host.View) ([]string, error) {
	names, err := v.ReadDir(dpkgUpdates)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	notNumbered := func(name string) bool { return strings.Trim(name, "0123456789") != "" }
	return slices.DeleteFunc(names, notNumbered), nil
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
	text                              []byte
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
	e.text = paragraph
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
		case "Essential", "Protected", "Important": // apt's own, from before dpkg knew Protected
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
		name := d.key(e.name, e.arch)
		if len(name) > 0 {
			kept := keep(name)
			d.packages[kept] = dpkgState(keep(e.version), e.status)
			d.paragraphs[kept] = e.text
		}
	}
}

// details returns the whole entry of a package. gpuadm asks for few entries, and only where
// packages are to change: so details searches the text, and a look does not parse them.
func (d *dpkg) details(name string) (last entry) {
	for _, text := range d.texts {
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
	words := strings.Fields(string(status))
	if len(words) != 3 {
		return packages.State{}
	}

	held := words[0] == "hold"
	flag, is := words[1], words[2]
	if is == "not-installed" {
		if held {
			return packages.State{Version: packages.Nowhere, Held: true}
		}
		return packages.State{}
	}

	state := packages.State{Version: version, Held: held}
	switch {
	case flag == "reinstreq": // whatever the status: dpkg(1), "Package flags"
		state.Broken = "half-installed"
	case is != "installed":
		state.Broken = is
	}

	if state.Version == "" { // half-installed for the first time: it has no version yet
		state.Version = packages.Nowhere
	}
	return state
}

// without returns the state of a package after its removal: dpkg keeps a package's entry as long as
// it has configuration files, or a script to run when it is purged.
func (d *dpkg) without(v host.View, name string) converge.State {
	p := d.packages[name]
	if !p.Installed() {
		return p.String()
	}

	details := d.details(name)
	remains := details.conffiles
	bare, _, _ := strings.Cut(name, ":")
	// The script's name has the architecture if the package can be installed for several.
	for _, script := range []string{bare, bare + ":" + string(details.arch)} {
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
		if string(e.auto) != "1" {
			continue
		}
		name := d.key(e.name, e.arch)
		if state := d.packages[string(name)]; state.Installed() {
			state.Auto = true
			d.packages[string(name)] = state
		}
	}
}

// FilesOf reads dpkg's lists; a package that can be installed for several architectures has its own
// in the name: dpkg-query(1).
func (apt) FilesOf(_ context.Context, v host.View, names []string) (map[string][]string, error) {
	native := architecture(v)
	all := map[string][]string{}
	for _, name := range names {
		bare, arch, _ := strings.Cut(name, ":")
		list := "/var/lib/dpkg/info/" + bare
		lists := []string{list + ".list", list + ":" + cmp.Or(arch, native) + ".list"}
		words := func(_ string, text []byte) []string { return strings.Fields(string(text)) }

		files, err := packages.ReadAll(v, lists, words)
		if err != nil {
			return nil, err
		}
		all[name] = files
	}

	return all, nil
}
