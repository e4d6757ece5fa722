// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

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
	d.src.addf(v.at, "write "+suggestion(r, v), "%s must be %s, not %s", r.Name, withArticle(r.Type), v.kind)
	return false
}

// text returns the canonical form of a string.
func (d *decoder) text(r row, v *value) string {
	text := v.text
	isDefault := "\""+text+"\"" == r.Default // it is allowed, also ""
	if isDefault || slices.Contains(r.Allowed, text) {
		return text
	}
	if len(r.Allowed) > 0 {
		d.src.addf(v.at, r.otherChoice(text), "%s cannot be %s", r.Name, show(text))
		return text
	}

	canonical, fault := r.checkText(text)
	if fault != nil {
		fault.What = r.Name + ": " + fault.What
		d.src.add(v.at, fault)
	}
	return canonical
}

// otherChoice says what to write in place of a value that is not among the allowed ones.
func (r row) otherChoice(text string) string {
	known := called()[r.Section+"."+r.Name+" "+strings.ToLower(text)]
	near := nearest.Of(text, r.Allowed)
	switch {
	case known != "":
		return known
	case near != "":
		return "did you mean " + strconv.Quote(near) + "? It is " + choice(r.Allowed)
	}

	return "write " + choice(r.Allowed)
}

// maxString is the largest length in bytes of a string.
const maxString = 4096

// checkText checks what no string may contain, and then the string by the row's own check.
func (r row) checkText(text string) (canonical string, fault *trouble.Error) {
	invisible := func(c rune) bool { return !unicode.IsPrint(c) }
	i := strings.IndexFunc(text, invisible)
	switch {
	case i >= 0:
		char, _ := utf8.DecodeRuneInString(text[i:])
		return text, wrong("take it out", "it contains the invisible character U+%04X", char)
	case len(text) > maxString:
		const tooLong = "it has %d bytes; at most %d make sense"
		return text, wrong("write a shorter one", tooLong, len(text), maxString)
	}

	return r.check(text)
}

func (d *decoder) number(r row, v *value, to *int) {
	if !d.is(r, v, intKind) {
		return
	}

	n, ok := parseInt(v.text)
	what, fix := r.numberFault(n, ok)
	if what != "" {
		d.src.addf(v.at, fix, "%s %s", r.Name, what)
		return
	}
	*to = n
}

// numberFault says what is wrong with a number, and what to write; "" if nothing is. ok says that
// it can be read.
func (r row) numberFault(n int, ok bool) (what, fix string) {
	const most = 1 << 20
	switch {
	case !ok || n > most:
		return "is too large", "write a smaller number"
	case n < 0:
		return "cannot be negative", "write 0 or more"
	case r.Section == "sharing" && n == 1:
		return "cannot be 1: one pod for each GPU is what there is without it", "write 0 for none, or 2 and more"
	}
	return "", ""
}

// parseInt reads a TOML integer, or a text that probably means one.
func parseInt(text string) (int, bool) {
	digits := strings.ReplaceAll(text, "_", "")
	n, err := strconv.ParseInt(digits, 0, 64)
	isNegative := strings.HasPrefix(digits, "-") && strings.Trim(digits, "-0123456789") == ""
	if err != nil && isNegative { // it is out of range, and counts as negative all the same
		return -1, true
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
			d.src.addf(item.at,
				"write "+r.Name+` = ["…", "…"]`,
				"%s must be %s; this is %s", r.Name, withArticle(r.Type), item.kind)
			continue
		}

		list = append(list, d.text(r, item))
	}

	*to = list
}

func (d *decoder) counts(r row, v *value, to map[string]int) {
	if !d.is(r, v, tableKind) {
		return
	}

	for _, m := range v.members {
		if m.kind == tableKind && m.dots {
			d.src.addf(m.key,
				`put the profile in quotes: "1g.10gb" = 7`,
				"a profile has a dot, and a dot without quotes begins a table")
			continue
		}

		if _, fault := r.check(m.name); fault != nil {
			d.src.add(m.key, fault)
			continue
		}

		n, ok := parseInt(m.text)
		inRange := ok && n >= 1 && n <= 64
		if m.kind != intKind || !inRange {
			likely := 1
			if inRange {
				likely = n
			}
			d.src.addf(m.at,
				fmt.Sprintf("write how many of it each GPU shall have, or leave it out: %s = %d", show(m.name), likely),
				"the count of %s must be an integer from 1 on", show(m.name))
			continue
		}

		to[m.name] = n
	}
}

// maxIndex is more than the highest index of a GPU on any machine.
const maxIndex = 1 << 10

func (d *decoder) devices(r row, v *value, to *Devices) {
	if v.kind == stringKind && v.text == "all" {
		*to = Devices{All: true}
		return
	}

	fix := "write " + suggestion(r, v)
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
		case !ok || n < 0 || n > maxIndex:
			d.src.addf(item.at,
				"write the index of a GPU, from 0",
				"no GPU has the index %s", clip(item.text))
		case slices.Contains(to.Index, n):
			d.src.addf(item.at, "write it once", "%d is in %s twice", n, r.Name)
		default:
			to.Index = append(to.Index, n)
		}
	}

	slices.Sort(to.Index)
}
