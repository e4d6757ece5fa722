// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/things"
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
		if len(text.Sources) == 0 || !reports[text.Name][text.Sources[0]] {
			t.Errorf("%s: no printed line of its report in %v", text.Name, text.Sources)
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

// TestSources holds that two pages support each text: two anchors, or two comments, of a page are one.
func TestSources(t *testing.T) {
	for _, text := range Texts() {
		pages := map[string]bool{}
		for _, source := range text.Sources {
			u, err := url.Parse(source)
			if err != nil || u.Scheme != "https" || u.Host == "" || u.Path == "" {
				t.Errorf("%s: %q is no page", text.Name, source)
				continue
			}
			pages[strings.ToLower(strings.TrimPrefix(u.Host, "www.")+strings.TrimSuffix(u.Path, "/"))] = true
		}
		if len(pages) < 2 || len(pages) != len(text.Sources) {
			t.Errorf("%s needs two different pages, each once: %v", text.Name, text.Sources)
		}
	}
}

// TestXids holds that a text of an Xid says what the one table of Xids says.
func TestXids(t *testing.T) {
	for name, number := range map[string]string{"off-the-bus": "79", "gsp-exception": "119"} {
		i := slices.IndexFunc(Texts(), func(t Text) bool { return t.Name == name })
		text, x := Texts()[i], things.Xids()[number]
		if !strings.Contains(text.What, x.Means) || !slices.Equal(text.Try, []string{x.Action}) {
			t.Errorf("%s: %q, %q, where the table has %q, %q", name, text.What, text.Try, x.Means, x.Action)
		}
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
