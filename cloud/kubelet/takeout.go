// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/lines"
)

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

	variable, removed, added := changedWords(before, after)
	if variable == "" {
		return nil, nil, errors.New("gpuadm changed more in it than kubelet's flags, so it cannot tell its own parts from others")
	}

	rest = found
	for _, word := range added {
		rest = withoutWord(rest, variable, word)
	}
	left = leftParts(before, rest, variable, added)

	for _, word := range removed {
		if slices.Contains(wordsOf(rest, variable), word) {
			continue
		}
		restored, err := withWord(rest, variable, word)
		if err != nil || bytes.Equal(rest, found) {
			left = append(left, word+" is not back, gpuadm had removed it")
			continue
		}
		rest = restored
	}

	if wordsOf(before, variable) == nil {
		rest = withoutLine(rest, variable)
	}
	if before == nil && len(bytes.TrimSpace(rest)) == 0 {
		return nil, left, nil // the file did not exist
	}
	means := func(exact []byte) bool {
		return sameButFor(rest, exact, variable, wordsOf(rest, variable))
	}
	return lines.Exact(before, after, found, rest, means), left, nil
}

// changedWords returns the variable whose words gpuadm's edit changed, the removed words and the
// added ones; "" if the edit changed anything else.
func changedWords(before, after []byte) (variable string, removed, added []string) {
	variable = changedVariable(before, after)
	if variable == "" {
		return "", nil, nil
	}

	wordsBefore := wordsOf(before, variable)
	wordsAfter := wordsOf(after, variable)
	removed = without(wordsBefore, wordsAfter)
	added = without(wordsAfter, wordsBefore)
	for _, word := range slices.Concat(removed, added) {
		ofLabels := strings.HasPrefix(word, "--"+labelFlag+"=")
		ofTaints := strings.HasPrefix(word, "--"+taintFlag+"=")
		if !ofLabels && !ofTaints {
			return "", nil, nil
		}
	}

	return variable, removed, added
}

// changedVariable returns the one variable that an edit changed; "" if it changed anything else.
func changedVariable(before, after []byte) string {
	values := lastValues(before)
	edited := lastValues(after)
	var changed []string
	for variable, value := range edited {
		old, had := values[variable]
		if !had || !slices.Equal(facts.Words(old), facts.Words(value)) {
			changed = append(changed, variable)
		}
	}

	for variable := range values {
		if _, has := edited[variable]; !has {
			changed = append(changed, variable)
		}
	}

	if len(changed) != 1 || !sameButFor(before, after, changed[0], wordsOf(after, changed[0])) {
		return ""
	}
	return changed[0]
}

// lastValues returns what a file sets each variable to.
func lastValues(data []byte) map[string]string {
	values := map[string]string{}
	for _, pair := range facts.Assignments(string(data)) {
		values[pair[0]] = pair[1]
	}
	return values
}

// without returns the words of list that other does not have.
func without(list, other []string) []string {
	isOther := setOf(other)
	return slices.DeleteFunc(slices.Clone(list), func(word string) bool {
		return isOther[word]
	})
}

func setOf(words []string) map[string]bool {
	set := make(map[string]bool, len(words))
	for _, word := range words {
		set[word] = true
	}
	return set
}

// leftParts names the labels and taints of gpuadm's words that the variable still sets after
// TakeOut, and did not set before the edit.
func leftParts(before, rest []byte, variable string, added []string) (left []string) {
	const text = "--%s in %s states %s, in a word that gpuadm did not write"
	wordsBefore := wordsOf(before, variable)
	wordsNow := wordsOf(rest, variable)
	for _, word := range added {
		flag, list, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		ours := setOf(strings.Split(list, ","))
		partsBefore := setOf(flagParts(wordsBefore, flag))
		for _, part := range flagParts(wordsNow, flag) {
			if ours[part] && !partsBefore[part] {
				left = append(left, fmt.Sprintf(text, flag, variable, part))
			}
		}
	}

	return left
}
