// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
)

// variableOf returns the value of a variable in a file of KEY=VALUE lines, and reports whether the
// file sets it. A later line replaces an earlier one.
func variableOf(data []byte, variable string) (value string, set bool) {
	for _, pair := range facts.Assignments(string(data)) {
		if pair[0] == variable {
			value = pair[1]
			set = true
		}
	}
	return value, set
}

// wordsOf returns the words of a variable: nil if it is not set, and an empty list if it is set to
// nothing.
func wordsOf(data []byte, variable string) []string {
	value, set := variableOf(data, variable)
	if !set {
		return nil
	}
	return append([]string{}, facts.Words(value)...)
}

// lineOf returns the offsets of the last line that sets a variable, and of the line after it. The
// value may have further lines: see assignmentOf.
func lineOf(data []byte, variable string) (from, to int) {
	at := 0
	for line := range bytes.Lines(data) {
		next := at + len(line)
		key, _, assigns := bytes.Cut(line, []byte("="))
		if assigns && string(bytes.TrimSpace(key)) == variable {
			from = at
			to = next
		}
		at = next
	}

	return from, to
}

// sameButFor reports whether two files set the same variables to the same values, except one
// variable: the second file must set it to these words, or not set it if words is nil.
func sameButFor(before, after []byte, variable string, words []string) bool {
	set := wordsOf(after, variable)
	isAsWanted := (set == nil) == (words == nil) && slices.Equal(set, words)
	return isAsWanted && slices.Equal(otherVariables(before, variable), otherVariables(after, variable))
}

// otherVariables returns the assignments of all variables but one.
func otherVariables(data []byte, variable string) [][2]string {
	return slices.DeleteFunc(facts.Assignments(string(data)), func(pair [2]string) bool {
		return pair[0] == variable
	})
}

// withWord adds a word to the end of a variable: before the closing quote, or at the end of the
// line. If neither edit adds this word and changes nothing else, it refuses the value.
func withWord(data []byte, variable, word string) ([]byte, error) {
	words := append(wordsOf(data, variable), word)
	for _, edited := range additions(data, variable, word) {
		if sameButFor(data, edited, variable, words) {
			return edited, nil
		}
	}

	return nil, fmt.Errorf("%s is not written on one line, in one pair of quotes or none", variable)
}

// additions returns one edited file for each place that may be the end of the variable.
func additions(data []byte, variable, word string) (edits [][]byte) {
	value, set := variableOf(data, variable)
	if !set {
		out := slices.Clone(data)
		if len(out) > 0 && out[len(out)-1] != '\n' {
			out = append(out, '\n')
		}
		return [][]byte{fmt.Appendf(out, "%s=\"%s\"\n", variable, word)}
	}

	if value != "" && !strings.HasSuffix(value, " ") {
		word = " " + word
	}
	from, to := lineOf(data, variable)
	end := from + len(bytes.TrimRight(data[from:to], " \t\r\n"))
	for _, at := range []int{end - 1, end} { // before a closing quote; after the last character
		if at > from {
			edits = append(edits, slices.Insert(slices.Clone(data), at, []byte(word)...))
		}
	}

	return edits
}

// withoutWord removes a word from a variable, with the blank before it or after it; it returns the
// file unchanged if the variable has no such word. Only the last assignment counts.
func withoutWord(data []byte, variable, word string) []byte {
	words := wordsOf(data, variable)
	i := slices.Index(words, word)
	if i < 0 {
		return data
	}
	words = slices.Delete(words, i, i+1)

	from, to := assignmentOf(data, variable)
	for _, text := range []string{" " + word, word + " ", word} {
		for at := from; at < to; at++ {
			if !bytes.HasPrefix(data[at:to], []byte(text)) {
				continue
			}
			edited := slices.Delete(slices.Clone(data), at, at+len(text))
			if sameButFor(data, edited, variable, words) {
				return edited
			}
		}
	}

	return data
}

// assignmentOf returns the offsets of the last assignment of a variable. It may have more than one
// line.
func assignmentOf(data []byte, variable string) (from, to int) {
	for _, a := range facts.AssignmentsIn(string(data)) {
		if a.Name == variable {
			from = a.Start
			to = a.End
		}
	}
	return from, to
}

// withoutLine removes the line of a variable that has no words.
func withoutLine(data []byte, variable string) []byte {
	if len(wordsOf(data, variable)) > 0 {
		return data
	}
	from, to := lineOf(data, variable)
	edited := slices.Delete(slices.Clone(data), from, to)
	if !sameButFor(data, edited, variable, nil) {
		return data
	}
	return edited
}
