// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package explain has the texts that other programs print when GPUs do not work, and what a person can do about each.
//
// It is a book to look things up in: no part of gpuadm decides anything by it. A text is found in whatever was pasted around it:
// times, prefixes, container ids, paths and versions.
package explain

import (
	"slices"
	"strings"
	"unicode"
)

// A Text is what another program prints, and its meaning.
type Text struct {
	Name    string   // nvml-mismatch
	By      string   // who prints it
	Phrases []string // all of them are in the text, in any order; "a|b" is one of two
	What    string   // the cause
	Matters string   // what does not work while it lasts
	Try     []string // what to type or do
	Sources []string // public pages: first the report that the text was taken from, then others with the same cause or the same fix
}

// Texts are all of them.
func Texts() []Text { return slices.Concat(driver(), kernel(), engine(), cluster(), packages()) }

// Find returns the texts that are in what was pasted, the most specific first.
func Find(pasted string) []Text {
	words := " " + normal(pasted) + " "
	found := map[string]int{} // by name: how many letters of it were recognised
	for _, t := range Texts() {
		if n := t.in(words); n > 0 {
			found[t.Name] = n
		}
	}
	all := slices.DeleteFunc(Texts(), func(t Text) bool { return found[t.Name] == 0 })
	slices.SortStableFunc(all, func(a, b Text) int { return found[b.Name] - found[a.Name] })
	return all
}

// in returns how many letters of the text's phrases are in words, 0 unless all phrases are.
func (t Text) in(words string) (letters int) {
	for _, phrase := range t.Phrases {
		i := slices.IndexFunc(strings.Split(phrase, "|"), func(p string) bool { return strings.Contains(words, " "+p+" ") })
		if i < 0 {
			return 0
		}
		letters += len(strings.Split(phrase, "|")[i])
	}
	return letters
}

// normal is a text as words in lower case with one blank between them. Line ends may be escaped, as programs log another's words, or as
// syslog writes them (#012). The kernel's driver begins each line with NVRM, also within a sentence.
func normal(text string) string {
	text = strings.NewReplacer(`\n`, " ", `\t`, " ", "#012", " ").Replace(strings.ToLower(text))
	words := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "nvrm" }), " ")
}
