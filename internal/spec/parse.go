// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// File is one file of a spec: its name, for messages, and its content.
type File struct {
	Name string
	Data []byte
}

// Parse reads node.toml and the files of node.d, in this order; later ones win by key. Labels,
// taints and the driver's parameters are merged by their own keys, all other lists replace.
//
// The error is of type trouble.Faults and lists all faults in all files; the Spec is then empty. A
// file that is not TOML has one fault, and the other files are still checked. Files are at most 1
// MiB, and at most 100.
func Parse(files ...File) (Spec, error) {
	s, _, err := Read(files...)
	return s, err
}

// Read is Parse. It also returns the place of each key, for faults that only the machine shows: a
// driver that fits no GPU.
func Read(files ...File) (Spec, Places, error) {
	if len(files) == 0 {
		none := newSource(File{})
		none.addf(0, "write /etc/gpuadm/node.toml, beginning with format = 1", "no file is given")
		return Spec{}, Places{}, none.finish()
	}

	rows := table()
	d := &decoder{rows: rows, spec: defaults(rows), places: map[string]place{}}
	var sources []*source
	whole := true // every file is TOML in a known format
	for i, f := range files {
		if i == maxFiles {
			src := newSource(File{Name: f.Name})
			src.addf(0, "put some of them together", "more than %d files", maxFiles)
			sources = append(sources, src)
			break
		}

		src := newSource(f)
		sources = append(sources, src)
		root := src.read(rows)
		if root == nil {
			whole = false
			continue
		}
		isKnown := d.file(src, root, i == 0)
		whole = whole && isKnown
		if len(src.errors) == 0 {
			src.judge()
		}
	}

	if whole {
		d.cross()
	}

	var all trouble.Faults
	for _, src := range sources {
		all = append(all, src.finish()...)
	}
	if len(all) > 0 {
		return Spec{}, Places{}, all
	}
	return d.result(), Places{d.places, sources[0]}, nil
}

// Places has the places at which the files of a valid spec set its keys.
type Places struct {
	of    map[string]place
	first *source
}

// Error returns a fault at the first of the keys, such as "driver.version" or "mig.gpu", that a
// file sets; if no file sets one, the fault is at the start of the first file.
func (p Places) Error(message, fix string, keys ...string) *trouble.Error {
	at := place{src: p.first}
	for _, key := range keys {
		set, isSet := p.of[key]
		if isSet {
			at = set
			break
		}
	}

	at.src.errors = nil
	at.src.full = false
	at.src.addf(at.at, fix, "%s", message)
	return at.src.finish()[0]
}

// read checks the bytes and parses them. If they are not TOML, it returns nil and notes the error.
func (s *source) read(rows []row) *value {
	const fix = "split it, or take out what is not a spec"
	if len(s.data) > maxSize {
		s.addf(0, fix, "the file has %d bytes; at most %d are read", len(s.data), maxSize)
		s.data = nil // parse nothing, not even the line to show
		s.lines = []int{0}
		return nil
	}

	keys := bytes.Count(s.data, []byte("=")) + bytes.Count(s.data, []byte("\n["))
	if keys > maxKeys {
		s.addf(0, fix, "the file has %d keys and tables; at most %d are read", keys, maxKeys)
		return nil
	}
	if !s.checkText() {
		s.secrets = brokenSecrets(s.data, 0)
		return nil
	}
	return s.tree(rows)
}

// checkText reports whether the file is text in UTF-8. If it is not, it notes the first byte that
// is not.
func (s *source) checkText() bool {
	isUTF16 := bytes.HasPrefix(s.data, []byte("\xff\xfe")) || bytes.HasPrefix(s.data, []byte("\xfe\xff"))
	if isUTF16 {
		s.addf(0, "save the file as UTF-8", "the file is UTF-16, not UTF-8")
		return false
	}

	for i := 0; i < len(s.data); {
		r, size := utf8.DecodeRune(s.data[i:])
		switch {
		case r == 0:
			s.addf(i, "take it out; save the file as plain text", "there is a NUL byte")
			return false
		case r == utf8.RuneError && size == 1:
			s.addf(i, "save the file as UTF-8", "the byte 0x%02x is not UTF-8", s.data[i])
			return false
		}

		i += size
	}

	return true
}

// result returns the Spec with its lists in canonical order.
func (d *decoder) result() Spec {
	s := d.spec
	s.Sections = nil
	for _, name := range sectionNames(d.rows) {
		if slices.Contains(d.spec.Sections, name) {
			s.Sections = append(s.Sections, name)
		}
	}

	if len(s.Node.Taints) == 0 {
		s.Node.Taints = nil // an empty list after removals equals no list
	}
	sorting.By(s.Node.Taints, func(a, b Taint) int {
		return strings.Compare(a.Key+":"+a.Effect, b.Key+":"+b.Effect)
	})

	for i := range s.MIG.GPU {
		gpu := &s.MIG.GPU[i]
		sorting.By(gpu.Placements, func(a, b Placement) int {
			return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Profile, b.Profile))
		})
		slices.Sort(gpu.Match)
		gpu.Match = slices.Compact(gpu.Match)
	}

	slices.Sort(s.Disruption.Allow)
	s.Disruption.Allow = slices.Compact(s.Disruption.Allow)
	return s
}
