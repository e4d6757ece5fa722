// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Disable comments out lines, or paragraphs of deb822, whose URI and suite are one of the repositories; of a paragraph with others too it
// takes the URI or the suite out.
func (apt) Disable(file string, data []byte, repos []packages.Repository, sys packages.System) []byte {
	ours := lists(repos)
	is := func(s source) bool { return slices.Contains(ours, s.list()) }
	parse := func(text string) []source { return parseSources(file, []byte(text), func() string { return sys.Arch }) }
	var out strings.Builder
	paragraph := ""
	end := func() {
		out.WriteString(without(paragraph, parse, is))
		paragraph = ""
	}
	for line := range strings.Lines(string(data)) {
		if paragraph += line; strings.TrimSpace(line) == "" || !strings.HasSuffix(file, ".sources") {
			end()
		}
	}
	end()
	return []byte(out.String())
}

// lists are what apt calls the lists of repositories: two ways to write one URI and suite have one name.
func lists(of []packages.Repository) (names []string) {
	for _, r := range of {
		names = append(names, source{uri: withSlash(r.URL), suite: "/"}.list())
	}
	return names
}

// without is a paragraph without the sources that are ours.
func without(paragraph string, parse func(string) []source, ours func(source) bool) string {
	all := parse(paragraph)
	if !slices.ContainsFunc(all, ours) {
		return paragraph
	}
	for field, of := range map[string]func(source) string{"uris": func(s source) string { return s.uri }, "suites": func(s source) string { return s.suite }} {
		var rest []string
		mixed := false
		for _, s := range all {
			same := func(o source) bool { return of(o) == of(s) }
			if !ours(s) && !slices.Contains(rest, of(s)) {
				rest = append(rest, of(s))
			}
			mixed = mixed || slices.ContainsFunc(all, func(o source) bool { return same(o) && ours(o) != ours(s) })
		}
		if !mixed && len(rest) > 0 {
			return replaceField(paragraph, field, strings.Join(rest, " "))
		}
	}
	var out strings.Builder
	for line := range strings.Lines(paragraph) {
		if t := strings.TrimSpace(line); t != "" && t[0] != '#' {
			line = packages.Disabled(line)
		}
		out.WriteString(line)
	}
	return out.String()
}

// replaceField gives a field of a paragraph another value, in the place of its last line.
func replaceField(paragraph, field, value string) string {
	var out strings.Builder
	last := "" // line of the field
	flush := func() {
		if last != "" {
			name, _, _ := strings.Cut(field, ":")
			out.WriteString(packages.Instead(strings.ToUpper(name[:1])+name[1:]+": "+value, last))
		}
		last = ""
	}
	in := false
	for line := range strings.Lines(paragraph) {
		name, _, _ := strings.Cut(line, ":")
		switch goesOn := line[0] == ' ' || line[0] == '\t'; {
		case in && goesOn || strings.EqualFold(strings.TrimSpace(name), field):
			if last != "" {
				out.WriteString(packages.Disabled(last))
			}
			in, last = true, line
			continue
		case line[0] != '#':
			in = false
		}
		flush()
		out.WriteString(line)
	}
	flush()
	return out.String()
}

// readable wants apt to be able to read its lists: of one repository with two keys, or with one and none, it reads none at all. Source:
// debReleaseIndex::SetSignedBy in apt-pkg/deb/debmetaindex.cc; tried with apt 2.6.2.
func (a apt) readable(repos []packages.Repository, contents map[string][]byte) converge.Want {
	return things.Check("apt's sources", func(_ context.Context, v host.View) (string, error) {
		done := true // at plan, others' declarations of what gpuadm declares are there yet
		for name, text := range contents {
			is, err := v.ReadFile(name)
			done = done && err == nil && string(is) == string(text)
		}
		first := map[string]source{}
		for _, s := range allSources(v) {
			if !done && slices.Contains(lists(repos), s.list()) {
				continue
			}
			o, twice := first[s.list()]
			if first[s.list()] = s; twice && (o.options["signed-by"] != s.options["signed-by"] || o.options["trusted"] != s.options["trusted"]) {
				return fmt.Sprintf("cannot have apt read its lists: %s and %s declare %s %s with different keys", o.file, s.file, s.uri, s.suite), nil
			}
		}
		return "", nil
	}, "one key for each repository, or apt reads no list", "remove one of the two entries")
}
