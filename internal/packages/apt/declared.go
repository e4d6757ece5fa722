// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Disable comments out lines, or paragraphs of deb822, whose URI and suite are one of the
// repositories; from a paragraph that also has other sources it removes the URI or the suite.
func (apt) Disable(file string, data []byte, repos []packages.Repository, sys packages.System) []byte {
	arch := func() string { return sys.Arch }
	ourLists := listsOf(repos)
	isOurs := func(s source) bool { return slices.Contains(ourLists, s.list()) }

	var out strings.Builder
	for _, entry := range entryTexts(file, string(data)) {
		out.WriteString(without(entry, parseSources(file, []byte(entry), arch), isOurs))
	}
	return []byte(out.String())
}

// entryTexts cuts a file of sources into its lines, or into its paragraphs of deb822, each with the
// empty lines behind it.
func entryTexts(file, text string) (entries []string) {
	lines := slices.Collect(strings.Lines(text))
	if !strings.HasSuffix(file, ".sources") {
		return lines
	}

	paragraph := ""
	for _, line := range lines {
		paragraph += line
		if strings.TrimSpace(line) == "" {
			entries = append(entries, paragraph)
			paragraph = ""
		}
	}

	return append(entries, paragraph)
}

// listsOf returns apt's names for the lists of repositories: two spellings of one URI and suite
// have the same name.
func listsOf(repos []packages.Repository) (names []string) {
	for _, r := range repos {
		names = append(names, source{uri: withSlash(r.URL), suite: "/"}.list())
	}
	return names
}

// without returns an entry without gpuadm's sources. all are the sources of the entry.
func without(entry string, all []source, isOurs func(source) bool) string {
	if !slices.ContainsFunc(all, isOurs) {
		return entry
	}

	for _, field := range []struct {
		name string
		of   func(source) string
	}{
		{"Uris", func(s source) string { return s.uri }},
		{"Suites", func(s source) string { return s.suite }},
	} {
		rest := otherValues(all, field.of, isOurs)
		if len(rest) > 0 {
			return replaceField(entry, field.name, strings.Join(rest, " "))
		}
	}

	return packages.DisabledAll(entry)
}

// otherValues returns the values of a field that only other sources have; none if gpuadm's sources
// have one of these values too.
func otherValues(all []source, of func(source) string, isOurs func(source) bool) (others []string) {
	var ours []string
	for _, s := range all {
		switch {
		case isOurs(s):
			ours = append(ours, of(s))
		case !slices.Contains(others, of(s)):
			others = append(others, of(s))
		}
	}

	if slices.ContainsFunc(others, func(value string) bool { return slices.Contains(ours, value) }) {
		return nil
	}
	return others
}

// replaceField gives a field of a paragraph another value, in the place of its last line.
func replaceField(paragraph, field, value string) string {
	var out strings.Builder
	last := ""     // line of the field, until it is known to be the last
	comments := "" // behind that line: the field may continue after them
	flush := func() {
		if last != "" {
			out.WriteString(packages.Replacing(last, field+": "+value))
		}
		out.WriteString(comments)
		last = ""
		comments = ""
	}

	for line := range strings.Lines(paragraph) {
		name, _, _ := strings.Cut(line, ":")
		inField := last != ""
		continues := line[0] == ' ' || line[0] == '\t'
		begins := strings.EqualFold(strings.TrimSpace(name), field)
		switch {
		case inField && line[0] == '#':
			comments += line
		case begins, inField && continues:
			if inField {
				out.WriteString(packages.Disabled(last) + comments)
			}
			last = line
			comments = ""
		default:
			flush()
			out.WriteString(line)
		}
	}

	flush()
	return out.String()
}

// readable wants apt to be able to read its lists. If two entries name one repository with
// different keys, or only one of them with a key, apt reads no list at all. Source:
// debReleaseIndex::SetSignedBy in apt-pkg/deb/debmetaindex.cc; tried with apt 2.6.2. A key that apt
// refuses is named before its repository replaces another.
func (a apt) readable(repos []packages.Repository, contents map[string][]byte) converge.Want {
	look := func(_ context.Context, v host.View) (problem string, err error) {
		if problem := refusedKey(v, repos); problem != "" {
			return problem, nil
		}
		return differentKeys(v, repos, contents), nil
	}

	const why = "one key for each repository, which apt accepts, or apt reads no list"
	return things.Check("apt's sources", look, why)
}

// refusedKey names a repository whose key apt of this machine refuses.
func refusedKey(v host.View, repos []packages.Repository) (problem string) {
	for _, r := range repos {
		_, key := things.KeyFile(v, aptKeyring(r), r.Fingerprint)
		if key == nil && path.IsAbs(r.Key) {
			key, _ = v.ReadFile(r.Key)
		}
		why, fix := things.Refused(v, key)
		if key != nil && why != "" {
			return fmt.Sprintf("cannot trust %s: apt of this machine refuses its key: %s", r.URL, why) + things.OrTry(fix)
		}
	}
	return ""
}

// differentKeys names two entries for one source that differ in their keys. At plan, other tools'
// entries for gpuadm's repositories are still enabled: they count only once gpuadm's files have
// their contents.
func differentKeys(v host.View, repos []packages.Repository, contents map[string][]byte) (problem string) {
	written := true
	for name, text := range contents {
		data, err := v.ReadFile(name)
		written = written && err == nil && string(data) == string(text)
	}

	previous := map[string]source{} // by list
	for _, s := range allSources(v) {
		list := s.list()
		if !written && slices.Contains(listsOf(repos), list) {
			continue
		}
		other, twice := previous[list]
		previous[list] = s
		if twice && !sameTrust(s, other) {
			return fmt.Sprintf("cannot have apt read its lists: %s and %s declare %s %s with different keys", other.file, s.file, s.uri, s.suite) +
				things.OrTry("remove one of the two entries")
		}
	}

	return ""
}

func sameTrust(a, b source) bool {
	return a.options["signed-by"] == b.options["signed-by"] && a.options["trusted"] == b.options["trusted"]
}
