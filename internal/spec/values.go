// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// set stores a value in its row's target. It notes faults of the value, and says whether there is
// none.
func (d *decoder) set(r row, v *value) bool {
	before := len(d.src.errors)
	switch to := r.ref(&d.spec).(type) {
	case *string:
		if d.is(r, v, stringKind) {
			*to = d.text(r, v)
		}
	case *bool:
		if d.is(r, v, boolKind) {
			*to = v.text == "true"
		}
	case *int:
		d.number(r, v, to)
	case *[]string:
		d.strings(r, v, to)
	case *[]Taint:
		d.taints(r, v, to)
	case *map[string]string:
		if d.is(r, v, tableKind) {
			for _, m := range v.members {
				d.entry(r, m, *to)
			}
		}
	case *map[string]int:
		d.counts(r, v, *to)
	case *Devices:
		d.devices(r, v, to)
	}
	return len(d.src.errors) == before && !d.src.full
}

// is notes a value of the wrong type.
func (d *decoder) is(r row, v *value, want kind) bool {
	if v.kind == want {
		return true
	}
	d.src.addf(v.at, "write "+suggestion(r, v), "%s must be %s, not %s", r.Name, a(r.Type), v.kind)
	return false
}

// suggestion returns the likely intent of a value of the wrong type: `key = value`.
func suggestion(r row, v *value) string {
	word := v.text
	if v.kind == tableKind || v.kind == listKind {
		word = ""
	}
	key := r.Name + " = "
	switch r.Type {
	case TypeString:
		return suggestedString(r, word)
	case TypeBool:
		switch strings.ToLower(word) {
		case "true", "yes", "on", "1":
			return key + "true"
		case "false", "no", "off", "0":
			return key + "false"
		}
		return key + "true or " + key + "false"
	case TypeInt:
		whole := strings.TrimSuffix(strings.TrimSpace(word), ".0")
		if n, ok := parseInt(whole); ok && n >= 0 {
			return key + strconv.Itoa(n)
		}
		return "a whole number, such as 2"
	case TypeStrings:
		return key + suggestedList(word)
	case TypeLabels:
		return key + `{ "example.com/name" = "value" }`
	case TypeParameters:
		return key + "{ NVreg_Name = 1 }"
	case TypeCounts:
		return key + `{ "1g.10gb" = 7 }`
	case TypeDevices:
		if n, ok := parseInt(word); ok && n >= 0 {
			return key + "[" + strconv.Itoa(n) + "]"
		}
	}
	return key + `"all" or ` + key + "[0, 1]"
}

func suggestedString(r row, word string) string {
	key := r.Name + " = "
	if len(r.Allowed) > 0 {
		switch {
		case word == "true" && slices.Contains(r.Allowed, "on"):
			return key + `"on"`
		case word == "false" && slices.Contains(r.Allowed, "off"):
			return key + `"off"`
		}
		return choice(r.Allowed)
	}

	if _, fault := r.check(word); fault == nil {
		return key + show(word) // the source text: 580.10 as a number would come back as 580.1
	}
	if r.Default == "" || r.Default == `""` {
		return key + `"…"`
	}
	return key + r.Default
}

func suggestedList(word string) string {
	if word == "" {
		return `["…"]`
	}
	words := strings.Split(clip(word), ",")
	for i := range words {
		words[i] = strconv.Quote(strings.TrimSpace(words[i]))
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// text returns the canonical form of a string.
func (d *decoder) text(r row, v *value) string {
	text := v.text
	if "\""+text+"\"" == r.Default { // the default is allowed, also ""
		return text
	}
	if len(r.Allowed) > 0 {
		if slices.Contains(r.Allowed, text) {
			return text
		}
		fix := cmp.Or(called()[r.Section+"."+r.Name+" "+text], "write "+choice(r.Allowed))
		if near := nearest.Of(text, r.Allowed); near != "" {
			fix = "did you mean " + strconv.Quote(near) + "? It is " + choice(r.Allowed)
		}
		d.src.addf(v.at, fix, "%s cannot be %s", r.Name, show(text))
		return text
	}
	canonical, f := text, (*trouble.Error)(nil)
	switch {
	case strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }):
		f = wrong("take it out", "there is an invisible character in it")
	case len(text) > 4096:
		f = wrong("write a shorter one", "it has %d bytes; at most 4096 make sense", len(text))
	default:
		canonical, f = r.check(text)
	}
	if f != nil {
		f.What = r.Name + ": " + f.What
		d.src.add(v.at, f)
	}
	return canonical
}

func (d *decoder) number(r row, v *value, to *int) {
	if !d.is(r, v, intKind) {
		return
	}
	n, ok := parseInt(v.text)
	switch {
	case !ok || n > 1<<20:
		d.src.addf(v.at, "write a smaller number", "%s is too large", r.Name)
	case n < 0:
		d.src.addf(v.at, "write 0 or more", "%s cannot be negative", r.Name)
	case r.Section == "sharing" && n == 1:
		d.src.addf(v.at, "write 0 for none, or 2 and more", "%s cannot be 1: one pod for each GPU is what there is without it", r.Name)
	default:
		*to = n
	}
}

// parseInt reads a TOML integer, or a text that probably means one.
func parseInt(text string) (int, bool) {
	digits := strings.ReplaceAll(text, "_", "")
	n, err := strconv.ParseInt(digits, 0, 64)
	if err != nil && strings.HasPrefix(digits, "-") && strings.Trim(digits, "-0123456789") == "" {
		return -1, true // a negative number out of range still counts as negative
	}
	return int(n), err == nil
}

func (d *decoder) strings(r row, v *value, to *[]string) {
	if !d.is(r, v, listKind) {
		return
	}
	var list []string
	for _, item := range v.items {
		if item.kind != stringKind {
			d.src.addf(item.at, "write "+r.Name+` = ["…", "…"]`, "%s must be %s; this is %s", r.Name, a(r.Type), item.kind)
			continue
		}
		list = append(list, d.text(r, item))
	}
	*to = list
}

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
	readText, check := d.parameterText, checkParameter
	if isLabel {
		readText, check = d.labelText, checkLabel
	}
	text, ok := readText(member)
	if !ok {
		return
	}

	name := member.name
	removes := isLabel && strings.HasSuffix(name, "-")
	if removes {
		name = strings.TrimSuffix(name, "-")
		if text != "" {
			d.src.addf(member.at,
				"write "+show(member.name)+` = ""`,
				"%s removes a label, and has a value", show(member.name))
			return
		}
	}

	if ofValue, fault := check(name, text); fault != nil {
		at := member.key
		if ofValue {
			at = member.at
		}
		d.src.add(at, fault)
		return
	}
	if text == "" && (removes || !isLabel) {
		delete(to, name)
		return
	}
	to[name] = text
}

// refuseTable notes a table in the place of a label's or parameter's value: mostly a name with a dot
// and without quotes.
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

func (d *decoder) counts(r row, v *value, to map[string]int) {
	if !d.is(r, v, tableKind) {
		return
	}
	for _, m := range v.members {
		if m.kind == tableKind && m.dots {
			d.src.addf(m.key, `put the profile in quotes: "1g.10gb" = 7`, "a profile has a dot, and a dot without quotes begins a table")
			continue
		}
		if _, f := r.check(m.name); f != nil {
			d.src.add(m.key, f)
			continue
		}
		n, ok := parseInt(m.text)
		if m.kind != intKind || !ok || n < 1 || n > 64 {
			d.src.addf(m.at, "write how many of it each GPU shall have, or leave it out: "+show(m.name)+" = 1",
				"the count of %s must be an integer from 1 on", show(m.name))
			continue
		}
		to[m.name] = n
	}
}

func (d *decoder) devices(r row, v *value, to *Devices) {
	fix := "write " + suggestion(r, v)
	if v.kind == stringKind && v.text == "all" {
		*to = Devices{All: true}
		return
	}
	if v.kind != listKind {
		d.src.addf(v.at, fix, "%s must be %s, not %s", r.Name, r.Type, v.kind)
		return
	}
	if len(v.items) == 0 {
		d.src.addf(v.at, fix, "%s is empty: no GPU is meant", r.Name)
	}
	*to = Devices{}
	for _, item := range v.items {
		n, ok := parseInt(item.text)
		switch {
		case item.kind != intKind:
			d.src.addf(item.at, fix, "%s must be %s; this is %s", r.Name, r.Type, item.kind)
		case !ok || n < 0 || n > 1<<10:
			d.src.addf(item.at, "write the index of a GPU, from 0", "no GPU has the index %s", clip(item.text))
		case slices.Contains(to.Index, n):
			d.src.addf(item.at, "write it once", "%d is in %s twice", n, r.Name)
		default:
			to.Index = append(to.Index, n)
		}
	}
	slices.Sort(to.Index)
}
