// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"errors"
	"fmt"
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

// flagKey returns what identifies a part of a list: a label's key, or a taint's key and effect.
func flagKey(part string) string {
	front, effect, _ := strings.Cut(part, ":")
	key, _, _ := strings.Cut(front, "=")
	return strings.TrimSpace(key) + ":" + effect
}

// flagParts returns the parts of a flag that kubelet would use.
func flagParts(words []string, flag string) (parts []string) {
	lists := facts.Options(append([]string{"kubelet"}, words...), flag, strings.ReplaceAll(flag, "-", "_"))
	if flag == taintFlag && len(lists) > 1 {
		lists = lists[len(lists)-1:]
	}
	for _, list := range lists {
		parts = flagUnion(parts, strings.Split(list, ","))
	}
	return slices.DeleteFunc(parts, func(p string) bool { return p == "" })
}

// flagUnion returns a list with the parts of other added; of two parts with the same key, other's
// wins.
func flagUnion(list, other []string) []string {
	list = slices.DeleteFunc(slices.Clone(list), func(p string) bool {
		return slices.ContainsFunc(other, func(o string) bool { return flagKey(o) == flagKey(p) })
	})
	return append(list, other...)
}

// withFlag returns a file of KEY=VALUE lines in which the variable also states these labels or
// taints, in one more word at its end. others are the taints that kubelet would register with if
// the variable stated none.
func withFlag(data []byte, variable, flag string, parts, others []string) ([]byte, error) {
	stated := flagParts(wordsOf(data, variable), flag)
	if flag == taintFlag && len(stated) == 0 {
		stated = others
	}
	if !slices.ContainsFunc(parts, func(p string) bool { return !slices.Contains(stated, p) }) {
		return data, nil
	}
	if flag == taintFlag {
		parts = flagUnion(stated, parts)
	}
	return withWord(data, variable, "--"+flag+"="+strings.Join(parts, ","))
}

// variableOf returns what a file of KEY=VALUE lines sets a variable to, and whether it does. A
// later line replaces an earlier one.
func variableOf(data []byte, variable string) (value string, set bool) {
	for _, pair := range facts.Assignments(string(data)) {
		if pair[0] == variable {
			value, set = pair[1], true
		}
	}
	return value, set
}

// wordsOf returns the words of a variable; nil if it is not set.
func wordsOf(data []byte, variable string) []string {
	value, set := variableOf(data, variable)
	if !set {
		return nil
	}
	return append([]string{}, facts.Words(value)...)
}

// withWord adds a word to the end of a variable: before the closing quote, or at the end of the
// line. If neither adds exactly the word, it refuses the value.
func withWord(data []byte, variable, word string) ([]byte, error) {
	value, set := variableOf(data, variable)
	words := append(wordsOf(data, variable), word)
	if !set {
		out := slices.Clone(data)
		if len(out) > 0 && out[len(out)-1] != '\n' {
			out = append(out, '\n')
		}
		if out = fmt.Appendf(out, "%s=\"%s\"\n", variable, word); sameButFor(data, out, variable, words) {
			return out, nil
		}
	}
	from, to := lineOf(data, variable)
	end := from + len(bytes.TrimRight(data[from:to], " \t\r\n"))
	if value != "" && !strings.HasSuffix(value, " ") {
		word = " " + word
	}
	for _, at := range []int{end - 1, end} {
		if at > from {
			if out := slices.Insert(slices.Clone(data), at, []byte(word)...); sameButFor(data, out, variable, words) {
				return out, nil
			}
		}
	}
	return nil, fmt.Errorf("%s is not written on one line, in one pair of quotes or none", variable)
}

// lineOf returns the offsets of the last line that sets a variable, and of the line after it.
func lineOf(data []byte, variable string) (from, to int) {
	at := 0
	for line := range bytes.Lines(data) {
		key, _, is := bytes.Cut(line, []byte("="))
		if is && string(bytes.TrimSpace(key)) == variable {
			from, to = at, at+len(line)
		}
		at += len(line)
	}
	return from, to
}

// sameButFor says whether two files set the same variables to the same values, except one variable,
// which the second file sets to these words, or does not set if words is nil.
func sameButFor(before, after []byte, variable string, words []string) bool {
	others := func(data []byte) [][2]string {
		return slices.DeleteFunc(facts.Assignments(string(data)), func(pair [2]string) bool { return pair[0] == variable })
	}
	is := wordsOf(after, variable)
	return slices.Equal(others(before), others(after)) && (is == nil) == (words == nil) && slices.Equal(is, words)
}

// TakeOut reverts, word by word, gpuadm's edit of a variable (before → after) in found, which was
// changed outside gpuadm since: it removes each word that gpuadm added, and restores each that
// gpuadm replaced. A missing word counts as removed. A label or taint of gpuadm's in a word of
// another process stays, and left names it.
func TakeOut(before, after, found []byte) (rest []byte, left []string, err error) {
	switch {
	case bytes.Equal(found, after):
		return before, nil, nil
	case bytes.Equal(found, before), bytes.Equal(before, after):
		return found, nil, nil
	}
	variable, gone, added := changedWords(before, after)
	if variable == "" {
		return nil, nil, errors.New("gpuadm did more to it than to add flags for kubelet, so it cannot tell its parts from others")
	}
	rest = found
	for _, word := range added {
		rest = withoutWord(rest, variable, word)
	}
	left = leftParts(before, rest, variable, added)
	for _, word := range gone {
		again, err := withWord(rest, variable, word)
		switch {
		case slices.Contains(wordsOf(rest, variable), word):
		case err != nil || bytes.Equal(rest, found):
			left = append(left, word+" is not back, gpuadm had removed it")
		default:
			rest = again
		}
	}
	if wordsOf(before, variable) == nil {
		rest = withoutLine(rest, variable)
	}
	if before == nil && len(bytes.TrimSpace(rest)) == 0 {
		rest = nil
	}
	return rest, left, nil
}

// changedWords returns the variable whose words gpuadm's edit changed, the removed words and the
// added ones; "" if the edit changed anything else.
func changedWords(before, after []byte) (variable string, gone, added []string) {
	for _, pair := range slices.Concat(facts.Assignments(string(before)), facts.Assignments(string(after))) {
		was, is := wordsOf(before, pair[0]), wordsOf(after, pair[0])
		if slices.Equal(was, is) || !sameButFor(before, after, pair[0], is) {
			continue
		}
		without := func(list, other []string) []string {
			return slices.DeleteFunc(slices.Clone(list), func(w string) bool { return slices.Contains(other, w) })
		}
		gone, added = without(was, is), without(is, was)
		for _, word := range append(slices.Clone(gone), added...) {
			if !strings.HasPrefix(word, "--"+labelFlag+"=") && !strings.HasPrefix(word, "--"+taintFlag+"=") {
				return "", nil, nil
			}
		}
		return pair[0], gone, added
	}
	return "", nil, nil
}

// leftParts names the labels and taints of gpuadm's words that the variable still states after
// TakeOut, and did not state before the edit.
func leftParts(before, rest []byte, variable string, added []string) (left []string) {
	was, is := wordsOf(before, variable), wordsOf(rest, variable)
	for _, word := range added {
		flag, list, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		for _, part := range flagParts(is, flag) {
			if slices.Contains(strings.Split(list, ","), part) && !slices.Contains(flagParts(was, flag), part) {
				left = append(left, fmt.Sprintf("--%s in %s states %s, in a word that gpuadm did not write", flag, variable, part))
			}
		}
	}
	return left
}

// withoutLine removes the line of a variable that has no words.
func withoutLine(data []byte, variable string) []byte {
	from, to := lineOf(data, variable)
	if out := slices.Delete(slices.Clone(data), from, to); len(wordsOf(data, variable)) == 0 && sameButFor(data, out, variable, nil) {
		return out
	}
	return data
}

// withoutWord removes a word from a variable, with the blank before it or after it; it returns the
// file unchanged if the variable has no such word.
func withoutWord(data []byte, variable, word string) []byte {
	words := wordsOf(data, variable)
	i := slices.Index(words, word)
	if i < 0 {
		return data
	}
	words = slices.Delete(words, i, i+1)
	for _, text := range []string{" " + word, word + " ", word} {
		for at := 0; ; at++ {
			next := bytes.Index(data[at:], []byte(text))
			if next < 0 {
				break
			}
			at += next
			if out := slices.Delete(slices.Clone(data), at, at+len(text)); sameButFor(data, out, variable, words) {
				return out
			}
		}
	}
	return data
}
