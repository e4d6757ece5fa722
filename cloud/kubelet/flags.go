// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Kubelet's two flags for labels and taints; both are lists. If a flag is given twice, kubelet
// merges labels, and of taints uses the last list: kubernetes,
// component-base/cli/flag/configuration_map.go and pkg/util/flag/flags.go, RegisterWithTaintsVar.
const (
	labelFlag = "node-labels"
	taintFlag = "register-with-taints"
)

// TaintTexts writes taints as the flag takes them.
func TaintTexts(taints []spec.Taint) (list []string) {
	for _, t := range taints {
		list = append(list, t.String())
	}
	return list
}

// flagParts returns the parts of a flag that kubelet would use: of two parts with the same key the
// one in the later list.
func flagParts(words []string, flag string) (parts []string) {
	argv := append([]string{"kubelet"}, words...)
	withUnderscores := strings.ReplaceAll(flag, "-", "_")
	lists := facts.Options(argv, flag, withUnderscores)
	if flag == taintFlag && len(lists) > 1 {
		lists = lists[len(lists)-1:]
	}

	of := map[string]int{} // the last list with a part of this key
	for i, list := range lists {
		for part := range strings.SplitSeq(list, ",") {
			of[partKey(part)] = i
		}
	}

	for i, list := range lists {
		for part := range strings.SplitSeq(list, ",") {
			if part != "" && of[partKey(part)] == i {
				parts = append(parts, part)
			}
		}
	}

	return parts
}

// union returns a list with the parts of other added; of two parts with the same key, other's wins.
func union(list, other []string) []string {
	replaced := func(part string) bool { return hasKey(other, partKey(part)) }
	kept := slices.DeleteFunc(slices.Clone(list), replaced)
	return append(kept, other...)
}

// hasKey says whether a list has a part with this key.
func hasKey(list []string, key string) bool {
	return slices.ContainsFunc(list, func(part string) bool { return partKey(part) == key })
}

// partKey returns what identifies a part of a list: a label's key, or a taint's key and effect.
func partKey(part string) string {
	front, effect, _ := strings.Cut(part, ":")
	key, _, _ := strings.Cut(front, "=")
	return strings.TrimSpace(key) + ":" + effect
}

// withFlag returns a file of KEY=VALUE lines in which the variable also sets these labels or
// taints, in one more word at its end. others are the taints that kubelet would register with if
// the variable set none.
func withFlag(data []byte, variable, flag string, parts, others []string) ([]byte, error) {
	present := flagParts(wordsOf(data, variable), flag)
	if flag == taintFlag && len(present) == 0 {
		present = others
	}

	missing := func(part string) bool { return !slices.Contains(present, part) }
	if !slices.ContainsFunc(parts, missing) {
		return data, nil
	}
	if flag == taintFlag { // the last list replaces the others
		parts = union(present, parts)
	}
	return withWord(data, variable, "--"+flag+"="+strings.Join(parts, ","))
}
