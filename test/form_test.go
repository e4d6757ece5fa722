// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// Law 10: the journal says by which merger an edit is taken out, for every file of every stage. Undo guesses nothing from a name.
func TestJournalNamesTheForm(t *testing.T) {
	seen := map[string]int{}
	for _, c := range lawCases(t) {
		n := c.boot(t)
		apply(t, n, c.wish.engine(t))
		for _, rec := range converge.ReadJournal(n).Records {
			if rec.Change == nil || rec.Change.Kind != "file" {
				continue
			}
			seen[rec.Change.Form]++
			ref := converge.Ref{Kind: "file", Name: rec.Change.Name, Form: rec.Change.Form}
			if _, err := thingOf(ref); err != nil || ref.Form == "" {
				t.Errorf("%s: %s is journalled with the form %q: %v", c.name, ref.Name, ref.Form, err)
			}
		}
	}
	if seen["toml"] == 0 || seen["whole"] == 0 || seen["kubelet"] == 0 {
		t.Errorf("the law was hardly tested: %v", seen)
	}
	if _, err := thingOf(converge.Ref{Kind: "file", Name: "/etc/x.toml", Form: "of a newer gpuadm"}); err == nil {
		t.Error("a form that is not known is guessed")
	}
}
