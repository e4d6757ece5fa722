// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// Kubelet's two flags for labels and taints; both take a list. If its command line has a flag
// twice, kubelet merges the lists of labels, and uses only the last list of taints: kubernetes,
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

// flagParts returns the labels or taints that kubelet would use. Of two parts with the same key,
// kubelet uses the later one, in one list or in two.
// Source: ConfigurationMap.Set in cli/flag/configuration_map.go of
// https://github.com/kubernetes/component-base.
func flagParts(words []string, flag string) (parts []string) {
	argv := append([]string{"kubelet"}, words...)
	withUnderscores := strings.ReplaceAll(flag, "-", "_")
	lists := facts.Options(argv, flag, withUnderscores)
	if flag == taintFlag && len(lists) > 1 {
		lists = lists[len(lists)-1:]
	}

	all := strings.Split(strings.Join(lists, ","), ",")
	last := map[string]int{} // where the part with this key is that counts
	for i, part := range all {
		last[partKey(part)] = i
	}

	for i, part := range all {
		if part != "" && last[partKey(part)] == i {
			parts = append(parts, part)
		}
	}

	return parts
}

// union returns the parts of two lists. A part of the second list replaces a part of the first one
// with the same key.
func union(list, other []string) []string {
	isReplaced := func(part string) bool { return hasKey(other, partKey(part)) }
	kept := slices.DeleteFunc(slices.Clone(list), isReplaced)
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
// taints: it appends one word to the variable's value. others are the taints with which kubelet
// would register if the variable set none.
func withFlag(data []byte, variable, flag string, parts, others []string) ([]byte, error) {
	present := flagParts(wordsOf(data, variable), flag)
	if flag == taintFlag && len(present) == 0 {
		present = others
	}

	isMissing := func(part string) bool { return !slices.Contains(present, part) }
	if !slices.ContainsFunc(parts, isMissing) {
		return data, nil
	}
	if flag == taintFlag { // the last list replaces the others
		parts = union(present, parts)
	}
	return withWord(data, variable, "--"+flag+"="+strings.Join(parts, ","))
}
