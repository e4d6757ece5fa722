// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
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
	rows   []row
	spec   Spec
	src    *source          // the file at hand
	places map[string]place // by "driver.version", "node.labels.example.com/a": the place of the value that counts
}

// Defaults is the Spec of a file without sections.
func Defaults() Spec { return defaults(table()) }

func defaults(rows []row) Spec {
	var s Spec
	for _, r := range rows {
		if r.Section != "" && !strings.HasPrefix(r.Section, "mig.gpu") {
			fill(r.ref(&s), r.Default)
		}
	}
	return s
}

// fill sets a value to what a row's Default says.
func fill(ref any, def string) {
	switch to := ref.(type) {
	case *string:
		*to, _ = strconv.Unquote(def)
	case *int:
		*to, _ = strconv.Atoi(def)
	case *bool:
		*to = def == "true"
	case *Devices:
		to.All = true
	case *map[string]string:
		*to = map[string]string{}
	case *map[string]int:
		*to = map[string]int{}
	}
}

// file reads one file into the spec. It reports whether this gpuadm knows the file's format.
func (d *decoder) file(src *source, root *value, first bool) bool {
	d.src = src
	f := root.find("format")
	switch {
	case f == nil && first:
		src.addf(0, "write format = 1 as the first line", "the format is missing")
	case f == nil:
	case f.kind != intKind:
		src.addf(f.at, "write format = 1", "format must be an integer, not %s", f.kind)
	default:
		if n, _ := parseInt(f.text); n > format {
			src.addf(f.at, "use a newer gpuadm, or write format = 1", "this gpuadm reads format %d", format)
			return false // keys that this gpuadm does not know may be valid there
		} else if n != format {
			src.addf(f.at, "write format = 1", "this gpuadm reads format %d", format)
		}
	}
	known := sectionNames(d.rows)
	for _, m := range root.members {
		switch {
		case m.name == "format":
		case slices.Contains(known, m.name):
			d.section(m.name, m)
		default:
			d.unknown("", m)
		}
	}
	return true
}

// section reads the table of a section.
func (d *decoder) section(name string, v *value) {
	if !strings.Contains(name, ".") && !slices.Contains(d.spec.Sections, name) {
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
		switch sub := name + "." + m.name; sub {
		case "driver.repo", "driver.runfile", "driver.grid", "toolkit.repo":
			d.section(sub, m)
		case "mig.gpu":
			d.gpus(m)
		case "mig.gpu.placements":
			d.placements(m)
		default:
			d.unknown(name, m)
		}
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
	at := place{src: d.src, at: v.key}
	if !d.set(r, v) {
		at.bad = true
	}
	if r.Section+"."+r.Name == "runtime.cdi" {
		d.spec.Runtime.CDIStated = true
	}
	d.places[r.Section+"."+r.Name] = at
}

// tables says whether a value is a list of tables.
func (d *decoder) tables(name string, v *value) bool {
	switch {
	case v.kind == tableKind && (v.header || !v.dots):
		d.src.addf(v.key, "write "+header(name)+", with double brackets", "%s is a list of tables, not a table", name)
		return false
	case v.kind != listKind:
		d.src.addf(v.at, "write "+header(name)+" on a line of its own, and its keys below", "%s is a list of tables, not %s", name, v.kind)
		return false
	}
	for _, item := range v.items {
		if item.kind != tableKind {
			d.src.addf(item.at, "write "+header(name)+" on a line of its own, and its keys below", "%s is a list of tables; this is %s", name, item.kind)
			return false
		}
	}
	return true
}

// gpus reads the [[mig.gpu]] of a file. They replace those of earlier files.
func (d *decoder) gpus(v *value) {
	d.spec.MIG.GPU = nil
	good := d.tables("mig.gpu", v)
	d.places["mig.gpu"] = place{d.src, v.key, !good}
	if !good {
		return
	}
	for _, item := range v.items {
		d.spec.MIG.GPU = append(d.spec.MIG.GPU, MIGGPU{})
		for _, r := range d.rows {
			if r.Section == "mig.gpu" {
				fill(r.ref(&d.spec), r.Default)
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
	if !d.tables("mig.gpu.placements", v) {
		return
	}
	gpu := &d.spec.MIG.GPU[len(d.spec.MIG.GPU)-1]
	for _, item := range v.items {
		gpu.Placements = append(gpu.Placements, Placement{})
		d.section("mig.gpu.placements", item)
		for _, r := range d.rows {
			if r.Section == "mig.gpu.placements" && item.find(r.Name) == nil {
				d.src.addf(item.key, `write it as { profile = "1g.10gb", start = 0 }`, "the placement has no %s", r.Name)
			}
		}
	}
}

// unknown notes a key that is not in the table.
func (d *decoder) unknown(section string, m *value) {
	var keys, elsewhere []string
	for _, r := range d.rows {
		switch {
		case r.Section == section:
			keys = append(keys, r.Name)
		case strings.HasPrefix(r.Section, section+".") || section == "":
			if name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(r.Section, section), "."), "."); !slices.Contains(keys, name) {
				keys = append(keys, name)
			}
		}
		if r.Section != section && r.Name == m.name {
			elsewhere = append(elsewhere, header(r.Section))
		}
		if parent, found := strings.CutSuffix(r.Section, "."+m.name); found && parent != section && !slices.Contains(elsewhere, header(r.Section)) {
			elsewhere = append(elsewhere, header(r.Section))
		}
	}
	near := nearest.Of(m.name, keys)
	if secretKey(m.name) && near == "" {
		d.src.addf(m.key, "take it out, and revoke it: this file can be read by all", "this file must not contain a secret: %s", show(m.name))
		return
	}
	what, where := "key", " in "+header(section)
	if section == "" {
		where = " " + header(section)
		if m.kind == tableKind || m.header {
			what, where = "section", ""
		}
	}
	message := "unknown " + what + " " + show(m.name) + where
	if what == "section" {
		message = "unknown section [" + clip(m.name) + "]"
	}
	d.src.addf(m.key, d.unknownFix(section, m.name, near, keys, elsewhere), "%s", message)
}

func (d *decoder) unknownFix(section, name, near string, keys, elsewhere []string) string {
	sure := near != "" && nearest.Distance(nearest.Flatten(name), nearest.Flatten(near)) <= 1
	if fix := called()[section+"."+nearest.Flatten(name)]; fix != "" {
		return fix
	}
	switch {
	case near != "" && (sure || len(elsewhere) == 0):
		if section == "" && near != "format" {
			return "did you mean [" + near + "]?"
		}
		return "did you mean " + show(near) + "?"
	case len(elsewhere) > 0:
		if strings.HasSuffix(strings.Trim(elsewhere[0], "[]"), "."+name) {
			return "write " + trouble.Or(elsewhere)
		}
		return "it belongs in " + trouble.Or(elsewhere)
	case section == "":
		return "the sections are " + strings.Join(sectionNames(d.rows), ", ")
	}
	return header(section) + " has " + strings.Join(keys, ", ")
}
