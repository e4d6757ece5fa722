// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

func effects() []string { return []string{"NoSchedule", "PreferNoSchedule", "NoExecute"} }

// parseTaint reads "key=value:Effect" or "key:Effect".
func parseTaint(text string) (Taint, *trouble.Error) {
	const form = `write it as "key=value:NoSchedule"`
	mayBeURL := strings.Contains(text, "@") || strings.Contains(text, "://")
	if mayBeURL { // no message quotes a URL or a part of it
		return Taint{}, wrong(form, "this is not a taint")
	}

	front, effect, _ := strings.Cut(text, ":")
	key, value, _ := strings.Cut(front, "=")
	t := Taint{Key: key, Value: value, Effect: effect}
	if fault := checkLabelKey(key); fault != nil {
		return t, fault
	}
	if fault := checkLabelValue(key, value); fault != nil {
		return t, fault
	}

	if effect == "" {
		return t, wrong(form+`, or "key-" to remove one`, "the taint %s has no effect", show(key))
	}
	if !slices.Contains(effects(), effect) {
		fix := "write " + choice(effects())
		if near := nearest.Of(effect, effects()); near != "" {
			fix = "did you mean " + show(near) + "?"
		}
		return t, wrong(fix, "the taint %s cannot have the effect %s", show(key), show(effect))
	}

	return t, nil
}

// taints merges the taints of a file into those of earlier ones. Two taints with the same key and
// effect are the same taint. As with kubectl, "key:Effect-" removes one taint and "key-" all with
// that key; "key:Effect" and "key=:Effect" mean a taint without a value.
func (d *decoder) taints(r row, v *value, to *[]Taint) {
	if !d.is(r, v, listKind) {
		return
	}

	var given []Taint
	for _, item := range v.items {
		if item.kind != stringKind {
			const fix = `write it as "key=value:NoSchedule"`
			d.src.addf(item.at, fix, "a taint must be a string, not %s", item.kind)
			continue
		}

		if removal, ok := parseRemoval(item.text); ok {
			if fault := removal.check(); fault != nil {
				d.src.add(item.at, fault)
				continue
			}
			*to = slices.DeleteFunc(*to, removal.matches)
			continue
		}

		taint, fault := parseTaint(item.text)
		if fault == nil && slices.ContainsFunc(given, taint.same) {
			fault = wrong("keep one of the two",
				"the taint %s with the effect %s is given twice", show(taint.Key), taint.Effect)
		}
		if fault != nil {
			d.src.add(item.at, fault)
			continue
		}
		given = append(given, taint)
		*to = append(slices.DeleteFunc(*to, taint.same), taint)
	}
}

// same says whether two taints are the same one, perhaps with different values.
func (t Taint) same(other Taint) bool {
	return t.Key == other.Key && t.Effect == other.Effect
}

// A taintRemoval removes the taints with a key, or the one with a key and an effect.
type taintRemoval struct {
	key       string
	effect    string
	hasEffect bool
}

// parseRemoval reads "key-" or "key:Effect-"; false if the text is not a removal.
func parseRemoval(text string) (taintRemoval, bool) {
	name, removes := strings.CutSuffix(text, "-")
	key, effect, hasEffect := strings.Cut(name, ":")
	if !removes || strings.Contains(key, "=") {
		return taintRemoval{}, false
	}
	return taintRemoval{key, effect, hasEffect}, true
}

func (r taintRemoval) check() *trouble.Error {
	if fault := checkLabelKey(r.key); fault != nil {
		return fault
	}
	if r.hasEffect && !slices.Contains(effects(), r.effect) {
		return wrong("write "+choice(effects()), "no taint has the effect %s", show(r.effect))
	}
	return nil
}

func (r taintRemoval) matches(t Taint) bool {
	return t.Key == r.key && (!r.hasEffect || t.Effect == r.effect)
}

func checkStartupTaint(v string) (string, *trouble.Error) {
	if v == "auto" || v == "none" {
		return v, nil
	}

	t, fault := parseTaint(v)
	isWord := !strings.ContainsAny(v, ":=/")
	switch {
	case fault != nil && isWord:
		const fix = `write "auto", "none", or a taint such as "example.com/starting:NoSchedule"`
		return v, wrong(fix, "%s is not a taint", show(v))
	case fault != nil:
		return v, fault
	}

	return t.String(), nil
}
