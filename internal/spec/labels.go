// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"slices"
	"strings"
)

// RestrictedLabel says whether Kubernetes forbids a kubelet to set a label on its own node: kubelet does not start
// with it in --node-labels, and the NodeRestriction admission refuses it. Only somebody else's identity can set it,
// such as the one of [node] kubeconfig.
//
// Source: kubernetes, pkg/kubelet/apis/well_known_labels.go (staging: k8s.io/kubelet/pkg/apis).
func RestrictedLabel(key string) bool {
	prefix, _, found := strings.Cut(key, "/")
	under := func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) }
	if !found || !under("kubernetes.io") && !under("k8s.io") {
		return false
	}
	if under("kubelet.kubernetes.io") || under("node.kubernetes.io") {
		return false
	}
	return !slices.Contains([]string{
		"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch",
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
	}, key)
}

// Labels are many, and compiling an expression for each costs more than reading the file.

// labelName says whether Kubernetes takes a text as the name or the value of a label.
func labelName(text string) bool {
	return between(text, alnum, func(c byte) bool { return alnum(c) || c == '-' || c == '_' || c == '.' })
}

// domain says whether a text is a DNS subdomain in lower case.
func domain(text string) bool {
	for label := range strings.SplitSeq(text, ".") {
		if !domainLabel(label) {
			return false
		}
	}
	return true
}

func domainLabel(text string) bool {
	lower := func(c byte) bool { return alnum(c) && (c < 'A' || c > 'Z') }
	return between(text, lower, func(c byte) bool { return lower(c) || c == '-' })
}

func alnum(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}

// between says whether a text begins and ends with some characters, and has only some between.
func between(text string, ends, inside func(byte) bool) bool {
	if text == "" || !ends(text[0]) || !ends(text[len(text)-1]) {
		return false
	}
	for i := range len(text) {
		if !inside(text[i]) {
			return false
		}
	}
	return true
}

// checkLabelKey checks the key of a label or a taint.
func checkLabelKey(key string) *finding {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		prefix, name = "", key
	}
	const fix = `write it as "example.com/name"`
	switch {
	case name == "" && !found:
		return wrong(fix, "the key is empty")
	case strings.Contains(name, "/"):
		return wrong(fix, "%s has more than one slash", show(key))
	case len(name) > 63:
		return wrong("write a shorter name", "the name in %s has %d characters; Kubernetes takes 63", show(key), len(name))
	case len(prefix) > 253:
		return wrong("write a shorter prefix", "the prefix in %s has %d characters; Kubernetes takes 253", show(key), len(prefix))
	case !labelName(name):
		return wrong(fix+"; letters, digits, -, _ and . inside", "Kubernetes refuses the name in %s", show(key))
	case found && !domain(prefix):
		return wrong(fix+"; the prefix is a domain in lower case", "Kubernetes refuses the prefix in %s", show(key))
	}
	return nil
}

// checkLabelValue checks the value of a label or a taint. It does not repeat it.
func checkLabelValue(key, value string) *finding {
	switch {
	case value == "":
	case len(value) > 63:
		return wrong("write a shorter value", "the value of %s has %d characters; Kubernetes takes 63", show(key), len(value))
	case !labelName(value):
		return wrong("write letters and digits, with -, _ and . inside", "Kubernetes refuses the value of %s", show(key))
	}
	return nil
}

// checkLabel says whether the fault is in the value, and what it is.
func checkLabel(key, value string) (bool, *finding) {
	if f := checkLabelKey(key); f != nil {
		return false, f
	}
	return true, checkLabelValue(key, value)
}

func effects() []string { return []string{"NoSchedule", "PreferNoSchedule", "NoExecute"} }

// parseTaint reads "key=value:Effect" or "key:Effect".
func parseTaint(text string) (Taint, *finding) {
	const form = `write it as "key=value:NoSchedule"`
	if strings.ContainsAny(text, "@") || strings.Contains(text, "://") { // a URL is repeated nowhere, not in parts either
		return Taint{}, wrong(form, "this is no taint")
	}
	front, effect, found := strings.Cut(text, ":")
	key, value, _ := strings.Cut(front, "=")
	t := Taint{Key: key, Value: value, Effect: effect}
	if f := checkLabelKey(key); f != nil {
		return t, f
	}
	if f := checkLabelValue(key, value); f != nil {
		return t, f
	}
	if !found || effect == "" {
		return t, wrong(form+`, or "key-" to remove one`, "the taint %s has no effect", show(key))
	}
	if !slices.Contains(effects(), effect) {
		fix := "write " + choice(effects())
		if near := nearest(effect, effects()); near != "" {
			fix = "did you mean " + show(near) + "?"
		}
		return t, wrong(fix, "the taint %s cannot have the effect %s", show(key), show(effect))
	}
	return t, nil
}

// taints merges the taints of a file into those of earlier ones. A taint is the same if its key and its effect are.
// As with kubectl, "key:Effect-" removes one and "key-" all of that key; "key:Effect" and "key=:Effect" are a taint
// without a value, which Kubernetes has and which therefore cannot mean removal as an empty label does.
func (d *decoder) taints(r row, v *value, to *[]Taint) {
	if !d.is(r, v, listKind) {
		return
	}
	var given []Taint
	for _, item := range v.items {
		if item.kind != stringKind {
			d.src.addf(item.at, `write it as "key=value:NoSchedule"`, "a taint must be a string, not %s", item.kind)
			continue
		}
		text, remove := strings.CutSuffix(item.text, "-")
		if key, effect, found := strings.Cut(text, ":"); remove && !strings.Contains(key, "=") {
			if f := checkLabelKey(key); f != nil {
				d.src.add(item.at, f)
			} else if found && !slices.Contains(effects(), effect) {
				d.src.addf(item.at, "write "+choice(effects()), "no taint has the effect %s", show(effect))
			} else {
				*to = slices.DeleteFunc(*to, func(t Taint) bool { return t.Key == key && (!found || t.Effect == effect) })
			}
			continue
		}
		t, f := parseTaint(item.text)
		same := func(o Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }
		if f == nil && slices.ContainsFunc(given, same) {
			f = wrong("keep one of the two", "the taint %s with the effect %s is given twice", show(t.Key), t.Effect)
		}
		if f != nil {
			d.src.add(item.at, f)
			continue
		}
		given = append(given, t)
		*to = append(slices.DeleteFunc(*to, same), t)
	}
}

func checkStartupTaint(v string) (string, *finding) {
	if v == "auto" || v == "none" {
		return v, nil
	}
	t, f := parseTaint(v)
	if f != nil {
		if !strings.ContainsAny(v, ":=/") {
			return v, wrong(`write "auto", "none", or a taint such as "example.com/starting:NoSchedule"`, "%s is no taint", show(v))
		}
		return v, f
	}
	return t.String(), nil
}
