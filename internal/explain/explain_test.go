// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"os"
	"strings"
	"testing"
)

// TestPrinted finds each text by lines as they were printed, from public reports: testdata/printed.txt.
func TestPrinted(t *testing.T) {
	data, err := os.ReadFile("testdata/printed.txt")
	if err != nil {
		t.Fatal(err)
	}
	reports := map[string]map[string]bool{} // by name
	for _, part := range strings.Split(string(data), "\n== ")[1:] {
		head, lines, _ := strings.Cut(part, "\n")
		name, report, _ := strings.Cut(head, " ")
		if reports[name] == nil {
			reports[name] = map[string]bool{}
		}
		reports[name][report] = true
		found := Find(lines)
		if len(found) == 0 || found[0].Name != name {
			t.Errorf("want %s of\n%s\nfound %v", name, lines, names(found))
		}
		around := "2026-11-23T04:10:11.123456+00:00 node-17 x[4711]: " + strings.ReplaceAll(lines, "\n", "\\n") + " in container 4a13088f28ffc64d8e83f5dd1a0df778"
		if found := Find(strings.ToUpper(around)); len(found) == 0 || found[0].Name != name {
			t.Errorf("%s is not found among other words: %v", name, names(found))
		}
	}
	for _, text := range Texts() {
		if !reports[text.Name][text.Report] {
			t.Errorf("%s: no printed line of its report %s", text.Name, text.Report)
		}
		for _, said := range []string{text.Name, text.By, text.What, text.Matters, strings.Join(text.Try, ""), strings.Join(text.Phrases, "")} {
			if said == "" {
				t.Errorf("%s leaves something empty", text.Name)
			}
		}
		for _, p := range text.Phrases {
			for one := range strings.SplitSeq(p, "|") {
				if one != normal(one) {
					t.Errorf("%s: no text can have the phrase %q: it is not in normal form", text.Name, one)
				}
			}
		}
	}
	if len(reports) < 40 || len(reports) != len(Texts()) {
		t.Errorf("%d texts with a printed line, of %d", len(reports), len(Texts()))
	}
}

func TestUnrelated(t *testing.T) {
	data, err := os.ReadFile("testdata/unrelated.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		if found := Find(line); len(found) > 0 {
			t.Errorf("%s\nis no %v", line, names(found))
		}
	}
	if n < 40 {
		t.Errorf("%d lines", n)
	}
}

func names(texts []Text) (names []string) {
	for _, t := range texts {
		names = append(names, t.Name)
	}
	return names
}
