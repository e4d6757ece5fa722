// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// unknown notes a key that is not in the table.
func (d *decoder) unknown(section string, m *value) {
	names := d.namesIn(section)
	near := nearest.Of(m.name, names)
	ofFile := m.kind == stringKind && isPath([]byte(strconv.Quote(m.text)))
	if secretKey(m.name) && near == "" && !ofFile {
		d.src.addf(m.key,
			"take it out, and revoke it: this file can be read by all",
			"this file must not contain a secret: %s", show(m.name))
		return
	}

	fix := called()[section+"."+nearest.Flatten(m.name)]
	if fix == "" {
		fix = d.nearFix(section, m.name, near, names)
	}
	d.src.addf(m.key, fix, "%s", unknownMessage(section, m))
}

func unknownMessage(section string, m *value) string {
	key := "unknown key " + show(m.name)
	switch {
	case section != "":
		return key + " in " + header(section)
	case m.kind == tableKind || m.header:
		return "unknown section [" + clip(m.name) + "]"
	}

	return key + " " + header(section)
}

// nearFix suggests the nearest name, the section of a key of this name, or lists all names.
func (d *decoder) nearFix(section, name, near string, names []string) string {
	elsewhere := d.sectionsWith(name, section)
	sure := near != "" && nearest.Distance(nearest.Flatten(name), nearest.Flatten(near)) <= 1
	onlyNear := near != "" && len(elsewhere) == 0
	switch {
	case sure || onlyNear:
		if section == "" && near != "format" {
			return "did you mean [" + near + "]?"
		}
		return "did you mean " + show(near) + "?"
	case len(elsewhere) > 0:
		isSection := strings.HasSuffix(strings.Trim(elsewhere[0], "[]"), "."+name)
		if isSection {
			return "write " + trouble.Or(elsewhere)
		}
		return "it belongs " + inSections(elsewhere)
	case section == "":
		return "the sections are " + strings.Join(sectionNames(d.rows), ", ")
	}

	return header(section) + " has " + strings.Join(names, ", ")
}

// inSections says where a key belongs, by the headers of its sections.
func inSections(headers []string) string {
	top := header("")
	sections := slices.DeleteFunc(slices.Clone(headers), func(h string) bool {
		return h == top
	})
	switch {
	case len(sections) == 0:
		return top
	case len(sections) < len(headers):
		return top + " or in " + trouble.Or(sections)
	}

	return "in " + trouble.Or(sections)
}

// namesIn returns the names of the keys and tables in a section.
func (d *decoder) namesIn(section string) (names []string) {
	for _, r := range d.rows {
		if r.Section == section {
			names = append(names, r.Name)
			continue
		}
		table, found := tableIn(section, r.Section)
		if found && !slices.Contains(names, table) {
			names = append(names, table)
		}
	}
	return names
}

// tableIn returns the table in an outer section that has an inner one: "repo" of driver.repo in
// driver. "" is the top of the file.
func tableIn(outer, inner string) (name string, found bool) {
	rest := inner
	if outer != "" {
		rest, found = strings.CutPrefix(inner, outer+".")
		if !found {
			return "", false
		}
	}

	name, _, _ = strings.Cut(rest, ".")
	return name, true
}

// sectionsWith returns the headers of the sections, except one, with a key of this name, and of the
// sections of this name within others.
func (d *decoder) sectionsWith(name, except string) (headers []string) {
	for _, r := range d.rows {
		if r.Section == except {
			continue
		}
		parent, hasName := strings.CutSuffix(r.Section, "."+name)
		isTable := hasName && parent != except
		if (isTable || r.Name == name) && !slices.Contains(headers, header(r.Section)) {
			headers = append(headers, header(r.Section))
		}
	}
	return headers
}
