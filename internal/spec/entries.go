// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"strconv"
	"strings"
)

// entry merges one label or parameter into a table. A parameter with an empty value, and a label's
// key with "-" after it as in kubectl, remove an entry: for a label an empty value is valid, as in
// node-role.kubernetes.io/NAME.
func (d *decoder) entry(r row, member *value, to map[string]string) {
	if member.kind == tableKind {
		d.refuseTable(r, member)
		return
	}
	d.places[r.Section+"."+r.Name+"."+member.name] = place{src: d.src, at: member.key}

	isLabel := r.Type == TypeLabels
	readText := d.parameterText
	check := checkParameter
	if isLabel {
		readText = d.labelText
		check = checkLabel
	}
	text, ok := readText(member)
	if !ok {
		return
	}

	name := member.name
	removes := isLabel && strings.HasSuffix(name, "-")
	if removes && text != "" {
		d.src.addf(member.at,
			"write "+show(name)+` = ""`,
			"%s removes a label, and has a value", show(name))
		return
	}

	if removes {
		name = strings.TrimSuffix(name, "-")
	}

	if ofValue, fault := check(name, text); fault != nil {
		at := member.key
		if ofValue {
			at = member.at
		}
		d.src.add(at, fault)
		return
	}

	removes = removes || !isLabel && text == ""
	if removes {
		delete(to, name)
		return
	}
	to[name] = text
}

// refuseTable notes a table in the place of a label's or parameter's value: mostly a name with a
// dot and without quotes.
func (d *decoder) refuseTable(r row, member *value) {
	fix := "write " + suggestion(r, &value{})
	switch {
	case member.dots && r.Type == TypeParameters:
		fix = "write the name alone, without the module: NVreg_Name"
	case member.dots:
		fix = "put the whole name in quotes: a dot without quotes begins a table"
	}

	d.src.addf(member.key, fix, "%s in %s is a table", show(member.name), r.Name)
}

func (d *decoder) labelText(member *value) (text string, ok bool) {
	if member.kind == stringKind {
		return member.text, true
	}

	fix := "write the value as text"
	if member.kind != listKind && !secretKey(member.name) {
		fix = "put the value in quotes: " + show(member.text)
	}
	d.src.addf(member.at, fix, "the value of a label must be a string, not %s", member.kind)
	return "", false
}

func (d *decoder) parameterText(member *value) (text string, ok bool) {
	switch member.kind {
	case stringKind:
		return member.text, true
	case boolKind:
		if member.text == "true" {
			return "1", true
		}
		return "0", true
	case intKind:
		n, err := strconv.ParseInt(strings.ReplaceAll(member.text, "_", ""), 0, 64)
		if err != nil {
			d.src.addf(member.at, "put the value in quotes", "%s is too large", show(member.name))
			return "", false
		}
		return strconv.FormatInt(n, 10), true
	}

	d.src.addf(member.at,
		"put the value in quotes",
		"the value of a parameter must be a string, an integer or a boolean, not %s", member.kind)
	return "", false
}
