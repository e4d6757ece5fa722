// SPDX-License-Identifier: Apache-2.0

package kubesim

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// restricted is the admission plugin NodeRestriction, in the words of its admitNode.
func restricted(u User, name string, old, made Object) string {
	own, isNode := strings.CutPrefix(u.Name, "system:node:")
	if !isNode {
		return ""
	}
	if own != name {
		return fmt.Sprintf("node %q is not allowed to modify node %q", own, name)
	}
	if !reflect.DeepEqual(below(old, "spec")["taints"], below(made, "spec")["taints"]) {
		return fmt.Sprintf("node %q is not allowed to modify taints", own)
	}

	before, _ := below(old, "metadata")["labels"].(Object)
	after, _ := below(made, "metadata")["labels"].(Object)
	var bad []string
	for _, labels := range []Object{before, after} {
		for key := range labels {
			if before[key] != after[key] && !nodeLabel(key) && !slices.Contains(bad, key) {
				bad = append(bad, key)
			}
		}
	}

	if bad == nil {
		return ""
	}
	slices.Sort(bad)
	return "is not allowed to modify labels: " + strings.Join(bad, ", ")
}

// nodeLabel reports whether a kubelet may set a label on its own Node: kubelet's
// pkg/apis/well_known_labels.go.
func nodeLabel(key string) bool {
	namespace, _, hasNamespace := strings.Cut(key, "/")
	under := func(domain string) bool {
		return namespace == domain || strings.HasSuffix(namespace, "."+domain)
	}
	switch {
	case !hasNamespace:
		return true
	case under("node-restriction.kubernetes.io"):
		return false
	case !under("kubernetes.io") && !under("k8s.io"), under("kubelet.kubernetes.io"), under("node.kubernetes.io"):
		return true
	}

	switch key {
	case "kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
		"beta.kubernetes.io/instance-type", "beta.kubernetes.io/os", "beta.kubernetes.io/arch":
		return true
	}

	return false
}

// invalid names the first field that validation would refuse: labels that are not strings or too
// long, a taint that a Node has twice.
func invalid(n Object) string {
	labels, _ := below(n, "metadata")["labels"].(Object)
	for _, v := range labels {
		text, ok := v.(string)
		if !ok || len(text) > 63 || strings.ContainsAny(text, " /:") {
			return "metadata.labels"
		}
	}

	taints, _ := below(n, "spec")["taints"].([]any)
	seen := map[string]bool{}
	for i, taint := range taints {
		o, _ := taint.(Object)
		key, effect := o["key"], o["effect"]
		id := fmt.Sprint(key, ":", effect)
		field := fmt.Sprintf("metadata.taints[%d]", i) // not spec.taints: ValidateNode in pkg/apis/core/validation/validation.go
		switch {
		case key == nil:
			return field + ".key"
		case effect == nil:
			return field + ".effect"
		case seen[id]:
			return field
		}

		seen[id] = true
	}

	return ""
}
