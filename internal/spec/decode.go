// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/content"
	"github.com/gpuadm/gpuadm/internal/nearest"
)

const format = 1 // of the files that gpuadm reads

// A place is where a file states a key.
type place struct {
	src *source
	at  int
	bad bool // the value is wrong: checks that depend on it are skipped
}

// A decoder reads trees into a Spec by the rows of the table, and notes faults.
type decoder struct {
	rows []row
	spec Spec
	src  *source // the file at hand

	// places has the place of the value that counts, by "driver.version",
	// "node.labels.example.com/a".
	places map[string]place
}

// file reads one file into the spec. It reports whether this gpuadm knows the file's format.
func (d *decoder) file(src *source, root *value, first bool) bool {
	d.src = src
	isFirst := first && !misplacesFormat(root)
	if !src.checkFormat(root.find("format"), isFirst) {
		return false // keys that this gpuadm does not know may be valid there
	}

	sections := sectionNames(d.rows)
	for _, m := range root.members {
		switch {
		case m.name == "format":
		case slices.Contains(sections, m.name):
			d.section(m.name, m)
		default:
			d.unknown("", m)
		}
	}

	return true
}

// misplacesFormat says whether the format is in a section, or mistyped: the fault of that key is
// enough.
func misplacesFormat(root *value) bool {
	for _, m := range root.members {
		isLike := m.kind != tableKind && nearest.Of(m.name, []string{"format"}) != ""
		if isLike || m.find("format") != nil {
			return true
		}
	}
	return false
}

// checkFormat notes a missing or wrong format. It reports whether this gpuadm can read the file.
func (s *source) checkFormat(f *value, first bool) bool {
	switch {
	case f == nil && first && isOthers(s.data):
		s.addf(0, specIs, "this is %s", content.Of(s.data))
		return false
	case f == nil && first:
		s.addf(0, "write format = 1 as the first line", "the format is missing")
		return true
	case f == nil:
		return true
	case f.kind != intKind:
		s.addf(f.at, "write format = 1", "format must be an integer, not %s", f.kind)
		return true
	}

	n, _ := parseInt(f.text)
	switch {
	case n > format:
		s.addf(f.at, "use a newer gpuadm, or write format = 1", "this gpuadm reads format %d", format)
	case n < format:
		s.addf(f.at, "write format = 1", "this gpuadm reads format %d", format)
	}

	return n <= format
}

// isOthers says whether a TOML file is another program's.
func isOthers(data []byte) bool {
	what := content.Of(data)
	return what != "" && what != "empty" && what != "TOML"
}

// section reads the table of a section.
func (d *decoder) section(name string, v *value) {
	isTop := !strings.Contains(name, ".")
	if isTop && !slices.Contains(d.spec.Sections, name) {
		d.spec.Sections = append(d.spec.Sections, name)
	}

	if v.kind != tableKind {
		fix := "write " + header(name) + " on a line of its own, and its keys below"
		if v.header {
			fix = "write " + header(name) + ", with single brackets"
		}
		d.src.addf(v.key, fix, "%s is a section, not %s", header(name), v.kind)
		d.places[name] = place{d.src, v.key, true}
		return
	}

	for _, m := range v.members {
		if r := d.row(name, m.name); r != nil {
			d.key(*r, m)
			continue
		}
		d.table(name, m)
	}
}

// table reads a table within a section.
func (d *decoder) table(section string, m *value) {
	switch name := section + "." + m.name; name {
	case "driver.repo", "driver.runfile", "driver.grid", "toolkit.repo":
		d.section(name, m)
	case "mig.gpu":
		d.gpus(m)
	case "mig.gpu.placements":
		d.placements(m)
	default:
		d.unknown(section, m)
	}
}

func (d *decoder) row(section, name string) *row {
	for i := range d.rows {
		if d.rows[i].Section == section && d.rows[i].Name == name {
			return &d.rows[i]
		}
	}
	return nil
}

// key reads one key of the table.
func (d *decoder) key(r row, v *value) {
	name := r.Section + "." + r.Name
	if name == "runtime.cdi" {
		d.spec.Runtime.CDIStated = true
	}
	valid := d.set(r, v)
	d.places[name] = place{src: d.src, at: v.key, bad: !valid}
}

// isListOfTables notes a value that is not a list of tables, and says whether it is one.
func (d *decoder) isListOfTables(name string, v *value) bool {
	ownLine := "write " + header(name) + " on a line of its own, and its keys below"
	switch {
	case v.kind == tableKind && (v.header || !v.dots):
		d.src.addf(v.key,
			"write "+header(name)+", with double brackets",
			"%s is a list of tables, not a table", name)
		return false
	case v.kind != listKind:
		d.src.addf(v.at, ownLine, "%s is a list of tables, not %s", name, v.kind)
		return false
	}

	for _, item := range v.items {
		if item.kind != tableKind {
			d.src.addf(item.at, ownLine, "%s is a list of tables; this is %s", name, item.kind)
			return false
		}
	}

	return true
}

// gpus reads the [[mig.gpu]] of a file. They replace those of earlier files.
func (d *decoder) gpus(v *value) {
	d.spec.MIG.GPU = nil
	valid := d.isListOfTables("mig.gpu", v)
	d.places["mig.gpu"] = place{src: d.src, at: v.key, bad: !valid}
	if !valid {
		return
	}

	for _, item := range v.items {
		d.spec.MIG.GPU = append(d.spec.MIG.GPU, MIGGPU{})
		for _, r := range d.rows {
			if r.Section == "mig.gpu" {
				setDefault(r.ref(&d.spec), r.Default)
			}
		}

		before := len(d.src.errors)
		d.section("mig.gpu", item)
		if len(d.src.errors) == before {
			d.migGPU(item)
		}
	}
}

func (d *decoder) placements(v *value) {
	if !d.isListOfTables("mig.gpu.placements", v) {
		return
	}

	gpu := &d.spec.MIG.GPU[len(d.spec.MIG.GPU)-1]
	for _, item := range v.items {
		gpu.Placements = append(gpu.Placements, Placement{})
		d.section("mig.gpu.placements", item)
		for _, r := range d.rows {
			if r.Section == "mig.gpu.placements" && item.find(r.Name) == nil {
				const fix = `write it as { profile = "1g.10gb", start = 0 }`
				d.src.addf(item.key, fix, "the placement has no %s", r.Name)
			}
		}
	}
}
