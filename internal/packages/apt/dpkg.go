// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Where dpkg and apt keep what they know: dpkg(1) and apt-get(8), "FILES".
const (
	dpkgUpdates  = "/var/lib/dpkg/updates" // what dpkg has not yet taken over into status: it was interrupted
	dpkgArch     = "/var/lib/dpkg/arch"
	aptExtStates = "/var/lib/apt/extended_states"
)

// A debian is one package as dpkg's database has it.
type debian struct {
	packages.State
	arch      string
	size      int64 // KiB when installed
	essential bool  // or protected: it may not be removed
	conffiles bool
}

// A dpkg is dpkg's database, by name; foreign ones are "name:arch".
type dpkg struct {
	packages    map[string]debian
	native      string // architecture
	interrupted bool
}

// readDpkg reads the database: the status file, what an interrupted dpkg left beside it, and apt's automatic marks.
func readDpkg(v host.View) (dpkg, error) {
	status, err := v.ReadFile(packages.DpkgStatus)
	if err != nil {
		return dpkg{}, fmt.Errorf("cannot read dpkg's database: %w", err)
	}
	d := dpkg{packages: make(map[string]debian, bytes.Count(status, []byte("\nPackage:"))+1), native: nativeArch(v, status)}
	d.add(status)
	updates, err := updatesLeft(v)
	if err != nil {
		return dpkg{}, err
	}
	d.interrupted = len(updates) > 0
	for _, name := range updates {
		update, err := v.ReadFile(dpkgUpdates + "/" + name)
		if err != nil {
			return dpkg{}, err
		}
		d.add(update)
	}
	marks, err := v.ReadFile(aptExtStates)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return dpkg{}, err
	}
	d.mark(marks)
	return d, nil
}

// updatesLeft are the files that a dpkg leaves which is interrupted; beside them it writes tmp.i, which does not count yet.
func updatesLeft(v host.View) ([]string, error) {
	names, err := v.ReadDir(dpkgUpdates)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.Trim(name, "0123456789") != "" }), nil
}

// nativeArch is the first line of dpkg's list of architectures, or dpkg's own: without foreign ones there is no list.
func nativeArch(v host.View, status []byte) string {
	if list, err := v.ReadFile(dpkgArch); err == nil {
		if first := strings.Fields(string(list)); len(first) > 0 {
			return first[0]
		}
	}
	arch := ""
	for p := range paragraphs(status) {
		var name, of string
		for key, value := range p {
			switch string(key) {
			case "Package":
				name = string(value)
			case "Architecture":
				of = string(value)
			}
		}
		if of != "all" {
			arch = of
		}
		if name == "dpkg" {
			break
		}
	}
	return arch
}

// add takes over what paragraphs say. A later one replaces an earlier one.
func (d *dpkg) add(text []byte) {
	for p := range paragraphs(text) {
		var one debian
		var name, status string
		for key, value := range p {
			switch string(key) {
			case "Package":
				name = string(value)
			case "Status":
				status = string(value)
			case "Architecture":
				one.arch = string(value)
			case "Version":
				one.Version = string(value)
			case "Essential", "Protected", "Important": // "Important" is apt's, from before dpkg knew "Protected"
				one.essential = one.essential || string(value) == "yes"
			case "Installed-Size":
				one.size, _ = strconv.ParseInt(string(value), 10, 64)
			case "Conffiles":
				one.conffiles = true
			}
		}
		if name = d.key(name, one.arch); name != "" {
			one.State = dpkgState(one.Version, status)
			d.packages[name] = one
		}
	}
}

// key is what apt calls a package.
func (d *dpkg) key(name, arch string) string {
	if arch == d.native || arch == "all" || arch == "" || name == "" {
		return name
	}
	return name + ":" + arch
}

// dpkgState reads "WANT FLAG STATUS": "hold ok installed".
func dpkgState(version, status string) packages.State {
	w := strings.Fields(status)
	if len(w) != 3 {
		return packages.State{}
	}
	st := packages.State{Version: version, Held: w[0] == "hold"}
	switch w[2] {
	case "installed":
		if w[1] != "ok" {
			st.Broken = w[1]
		}
	case "not-installed":
		st.Version = ""
		if st.Held {
			st.Version = packages.Nowhere
		}
	default:
		st.Broken = w[2]
	}
	if st.Version == "" && w[2] != "not-installed" { // half-installed for the first time: it has no version yet
		st.Version = packages.Nowhere
	}
	return st
}

// without says what remains of a package once it is removed: dpkg keeps a package's entry as long as it has
// configuration files, or a script that is to be run when it is purged.
func (d *dpkg) without(v host.View, name string) converge.State {
	p := d.packages[name]
	if !p.Installed() {
		return p.String()
	}
	remains := p.conffiles
	bare, _, _ := strings.Cut(name, ":")
	for _, script := range []string{bare, bare + ":" + p.arch} { // with the architecture where it can be installed for several
		if _, err := v.Stat("/var/lib/dpkg/info/" + script + ".postrm"); err == nil {
			remains = true
		}
	}
	if remains {
		return packages.State{Version: p.Version, Broken: packages.ConfigFiles}.String()
	}
	return ""
}

// mark takes over apt's automatic marks.
func (d *dpkg) mark(text []byte) {
	for p := range paragraphs(text) {
		var name, arch, auto string
		for key, value := range p {
			switch string(key) {
			case "Package":
				name = string(value)
			case "Architecture":
				arch = string(value)
			case "Auto-Installed":
				auto = string(value)
			}
		}
		name = d.key(name, arch)
		if one, ok := d.packages[name]; ok && auto == "1" && one.Installed() {
			one.Auto = true
			d.packages[name] = one
		}
	}
}

// paragraphs goes through text in the form of deb822(5): for each paragraph a sequence of its fields, with the lines that
// continue a value.
func paragraphs(text []byte) iter.Seq[iter.Seq2[[]byte, []byte]] {
	return func(yield func(iter.Seq2[[]byte, []byte]) bool) {
		for len(text) > 0 {
			paragraph, rest, _ := bytes.Cut(text, []byte("\n\n"))
			text = rest
			if len(bytes.TrimSpace(paragraph)) > 0 && !yield(fields(paragraph)) {
				return
			}
		}
	}
}

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

// endOfField is where the first line that neither continues a field nor is a comment begins.
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
