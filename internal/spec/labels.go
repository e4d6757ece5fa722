// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// RestrictedLabel says whether Kubernetes forbids a kubelet to set a label on its own node: kubelet
// does not start with it in --node-labels, and the NodeRestriction admission refuses it. Only
// another identity can set it, such as that of [node] kubeconfig.
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

// There are many labels, and a compilation for each would cost more than reading the file.
var (
	labelName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`) })
	dnsLabel  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`) })
)

// IsLabelKey says whether Kubernetes accepts a text as the key of a label or a taint.
// Source: kubernetes, staging/src/k8s.io/apimachinery/pkg/api/validate/content/kube.go.
func IsLabelKey(key string) bool {
	prefix, name, found := strings.Cut(key, "/")
	if !found {
		return key != "" && IsLabelValue(key)
	}
	return name != "" && IsLabelValue(name) && domain(prefix)
}

// IsLabelValue says whether Kubernetes accepts a text as the value of a label or a taint.
func IsLabelValue(value string) bool {
	return value == "" || len(value) <= 63 && labelName().MatchString(value)
}

// domain says whether a text is a DNS subdomain in lower case.
func domain(text string) bool {
	bad := func(label string) bool { return !dnsLabel().MatchString(label) }
	return len(text) <= 253 && !slices.ContainsFunc(strings.Split(text, "."), bad)
}

func domainLabel(text string) bool { return len(text) <= 63 && dnsLabel().MatchString(text) }

// checkLabelKey checks the key of a label or a taint.
func checkLabelKey(key string) *trouble.Error {
	if IsLabelKey(key) {
		return nil
	}
	return wrong(`write it as "example.com/name": a domain in lower case, and at most 63 letters and digits, with -, _ and . inside`,
		"Kubernetes refuses the key %s", show(key))
}

// checkLabelValue checks the value of a label or a taint. Its error does not quote the value.
func checkLabelValue(key, value string) *trouble.Error {
	if IsLabelValue(value) {
		return nil
	}
	return wrong("write at most 63 letters and digits, with -, _ and . inside", "Kubernetes refuses the value of %s", show(key))
}

// checkLabel says whether the fault is in the value, and what it is.
func checkLabel(key, value string) (bool, *trouble.Error) {
	if f := checkLabelKey(key); f != nil {
		return false, f
	}
	return true, checkLabelValue(key, value)
}

func effects() []string { return []string{"NoSchedule", "PreferNoSchedule", "NoExecute"} }

// parseTaint reads "key=value:Effect" or "key:Effect".
func parseTaint(text string) (Taint, *trouble.Error) {
	const form = `write it as "key=value:NoSchedule"`
	if strings.ContainsAny(text, "@") || strings.Contains(text, "://") { // no message quotes a URL or a part of it
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

func checkStartupTaint(v string) (string, *trouble.Error) {
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

// The checks of [join].
