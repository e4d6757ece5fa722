// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

// A source is one entry of apt's list of sources: sources.list(5).
type source struct {
	file     string
	uri      string
	suite    string
	signedBy []string // key files; none: every key that apt trusts

	components []string          // main, contrib
	options    map[string]string // all other options, by their names in the deb822 form, in lower case
}

// parseSources reads a file of sources in either form. Entries that are disabled are left out. It
// calls arch only for files that name the architecture, since dpkg's database has 1 MB and more.
func parseSources(file string, data []byte, arch func() string) []source {
	if strings.HasSuffix(file, ".sources") {
		return parseDeb822(file, data, arch)
	}
	var all []source
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		kind, rest, _ := strings.Cut(strings.ReplaceAll(strings.TrimSpace(line), "\t", " "), " ")
		if kind != "deb" && kind != "deb-src" {
			continue
		}
		rest = strings.TrimSpace(rest)
		var signedBy []string
		said := map[string]string{}
		if options, after, ok := strings.Cut(rest, "]"); ok && strings.HasPrefix(options, "[") {
			rest = after
			for _, o := range strings.Fields(options[1:]) {
				name, value, _ := strings.Cut(o, "=")
				name = strings.ToLower(name)
				said[cmp.Or(inDeb822[name], name)] = strings.ReplaceAll(value, ",", " ")
				if value, is := strings.CutPrefix(strings.ToLower(o), "signed-by="); is {
					signedBy = keyFiles(o[len(o)-len(value):])
				}
			}
		}
		if words := strings.Fields(rest); len(words) >= 2 && len(all) < maxSources {
			all = append(all, source{file, withArch(unquoted(words[0]), arch), withArch(unquoted(words[1]), arch), signedBy, words[2:], said})
		}
	}
	return all
}

// unquoted is a word as apt reads it in a one-line entry: ParseQuoteWord in
// apt-pkg/contrib/strutl.cc.
func unquoted(word string) string {
	if plain, err := url.PathUnescape(word); err == nil {
		return plain
	}
	return word
}

// inDeb822 has the names of a one-line entry's options that differ in the other form:
// sources.list(5).
var inDeb822 = map[string]string{"arch": "architectures", "lang": "languages", "target": "targets"}

// maxSources is the number of sources that gpuadm reads of one file: no real file has so many. Each
// URI combines with each suite, and the product of a small file could fill the memory; sources are
// compared with each other, and 60,000 took minutes.
const maxSources = 1000

func parseDeb822(file string, data []byte, arch func() string) []source {
	var all []source
	for paragraph := range paragraphs(data) {
		said := map[string]string{}
		for key, value := range fields(paragraph) {
			lines := slices.DeleteFunc(strings.Split(string(value), "\n"), func(l string) bool { return strings.HasPrefix(l, "#") })
			said[strings.ToLower(strings.TrimSpace(string(key)))] = strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
		}
		if e := strings.ToLower(said["enabled"]); e == "no" || e == "false" || e == "0" {
			continue
		}
		options := maps.Clone(said)
		maps.DeleteFunc(options, func(name, _ string) bool {
			return slices.Contains([]string{"", "types", "uris", "suites", "components", "enabled"}, name)
		})
		keys, components, suites := keyFiles(said["signed-by"]), strings.Fields(said["components"]), strings.Fields(said["suites"])
		for _, uri := range strings.Fields(said["uris"]) {
			for _, suite := range suites[:min(len(suites), maxSources-len(all))] {
				all = append(all, source{file, withArch(uri, arch), withArch(suite, arch), keys, components, options})
			}
		}
	}
	return all
}

func withArch(s string, arch func() string) string {
	if !strings.Contains(s, "$(ARCH)") {
		return s
	}
	return strings.ReplaceAll(s, "$(ARCH)", arch())
}

// keyFiles returns the paths in Signed-By, which may also have fingerprints, or a whole key.
func keyFiles(signedBy string) (files []string) {
	for _, f := range strings.FieldsFunc(signedBy, func(r rune) bool { return r == ' ' || r == ',' }) {
		if strings.HasPrefix(f, "/") {
			files = append(files, f)
		}
	}
	return files
}

// list returns the beginning of the names of apt's list files for this source: the URI without its
// scheme, with slashes as underscores and some signs written %xx. Source: apt's URItoFileName,
// apt-pkg/contrib/strutl.cc.
func (s source) list() string {
	uri := strings.TrimSuffix(s.uri, "/") + "/"
	switch {
	case s.suite == "/":
	case strings.HasSuffix(s.suite, "/"):
		uri += strings.TrimPrefix(s.suite, "/")
	default:
		uri += "dists/" + s.suite + "/"
	}
	if _, after, ok := strings.Cut(uri, "://"); ok {
		uri = after
	} else if _, after, ok := strings.Cut(uri, ":"); ok {
		uri = after // file:/srv/repo
	}
	if host, rest, _ := strings.Cut(uri, "/"); strings.Contains(host, "@") {
		uri = host[strings.LastIndex(host, "@")+1:] + "/" + rest
	}
	var b strings.Builder
	for _, c := range []byte(uri) {
		switch {
		case c == '/':
			b.WriteByte('_')
		case strings.IndexByte("\\|{}[]<>\"^~_=!@#$%^&*", c) >= 0 || c <= 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, "%%%02x", c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// allSources reads every file that apt takes its sources from. It skips an unreadable file, which
// apt reports.
func allSources(v host.View) []source {
	files := []string{"/etc/apt/sources.list"}
	for _, n := range packages.ListOf(v, "/etc/apt/sources.list.d") {
		if e := path.Ext(n); e == ".list" || e == ".sources" {
			files = append(files, "/etc/apt/sources.list.d/"+n)
		}
	}
	all, _ := sourcesIn(v, files)
	return all
}

// sourcesIn reads files of sources.
func sourcesIn(v host.View, files []string) ([]source, error) {
	arch := sync.OnceValue(func() string { return architecture(v) })
	return packages.ReadAll(v, files, func(file string, data []byte) []source { return parseSources(file, data, arch) })
}

func architecture(v host.View) string {
	status, _ := v.ReadFile(facts.DpkgStatus)
	return nativeArch(v, status)
}

// Disable comments out lines, or paragraphs of deb822, whose URI and suite are one of the
// repositories; from a paragraph that also has other sources it removes the URI or the suite.
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

// lists returns apt's names for the lists of repositories: two spellings of one URI and suite have
// the same name.
func lists(of []packages.Repository) (names []string) {
	for _, r := range of {
		names = append(names, source{uri: withSlash(r.URL), suite: "/"}.list())
	}
	return names
}

// without returns a paragraph without gpuadm's sources.
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
	return packages.DisabledAll(paragraph)
}

// replaceField gives a field of a paragraph another value, in the place of its last line.
func replaceField(paragraph, field, value string) string {
	var out strings.Builder
	last := "" // line of the field
	flush := func() {
		if last != "" {
			out.WriteString(packages.Replacing(last, strings.ToUpper(field[:1])+field[1:]+": "+value))
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

// readable wants apt to be able to read its lists. If two entries name one repository with
// different keys, or only one of them with a key, apt reads no list at all. Source:
// debReleaseIndex::SetSignedBy in apt-pkg/deb/debmetaindex.cc; tried with apt 2.6.2. A key that apt
// refuses is named before its repository replaces another.
func (a apt) readable(repos []packages.Repository, contents map[string][]byte) converge.Want {
	return things.Check("apt's sources", func(_ context.Context, v host.View) (string, error) {
		for _, r := range repos {
			_, key := things.KeyFile(v, aptKeyring(r), r.Fingerprint)
			if key == nil && path.IsAbs(r.Key) {
				key, _ = v.ReadFile(r.Key)
			}
			if why, fix := things.Refused(v, key); key != nil && why != "" {
				return fmt.Sprintf("cannot trust %s: apt of this machine refuses its key: %s", r.URL, why) + things.OrTry(fix), nil
			}
		}
		done := true // at plan, other tools' entries for gpuadm's repositories are still enabled
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
				return fmt.Sprintf("cannot have apt read its lists: %s and %s declare %s %s with different keys", o.file, s.file, s.uri, s.suite) + things.OrTry("remove one of the two entries"), nil
			}
		}
		return "", nil
	}, "one key for each repository, which apt accepts, or apt reads no list")
}
