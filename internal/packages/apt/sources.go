// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// A source is one entry of apt's list of sources: sources.list(5).
type source struct {
	file     string
	uri      string
	suite    string
	signedBy []string // key files; none: every key that apt trusts
	codeOnly bool     // it has the packages' source code and no packages: deb-src

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
		s, ok := parseLine(line)
		if ok && len(all) < maxSources {
			s.file = file
			s.uri = withArch(unquoted(s.uri), arch)
			s.suite = withArch(unquoted(s.suite), arch)
			all = append(all, s)
		}
	}

	return all
}

// parseLine reads an entry "deb [ OPTIONS ] URI SUITE COMPONENT…". URI and suite are as they are
// written there.
func parseLine(line string) (source, bool) {
	line = strings.ReplaceAll(strings.TrimSpace(line), "\t", " ")
	kind, rest, _ := strings.Cut(line, " ")
	if kind != "deb" && kind != "deb-src" {
		return source{}, false
	}

	s := source{codeOnly: kind == "deb-src", options: map[string]string{}}
	rest = strings.TrimSpace(rest)
	options, after, ok := strings.Cut(rest, "]")
	if ok && strings.HasPrefix(options, "[") {
		rest = after
		for _, option := range strings.Fields(options[1:]) {
			name, value, _ := strings.Cut(option, "=")
			name = strings.ToLower(name)
			s.options[cmp.Or(inDeb822[name], name)] = strings.ReplaceAll(value, ",", " ")
			if name == "signed-by" {
				s.signedBy = keyFiles(value)
			}
		}
	}

	words := strings.Fields(rest)
	if len(words) < 2 {
		return source{}, false
	}
	s.uri = words[0]
	s.suite = words[1]
	s.components = words[2:]
	return s, true
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
		values := valuesOf(paragraph)
		if isNo(values["enabled"]) {
			continue
		}

		types := strings.Fields(values["types"])
		s := source{
			file:       file,
			signedBy:   keyFiles(values["signed-by"]),
			codeOnly:   len(types) > 0 && !slices.Contains(types, "deb"),
			components: strings.Fields(values["components"]),
			options:    maps.Clone(values),
		}
		for _, name := range []string{"", "types", "uris", "suites", "components", "enabled"} {
			delete(s.options, name)
		}
		suites := strings.Fields(values["suites"])
		for _, uri := range strings.Fields(values["uris"]) {
			for _, suite := range suites[:min(len(suites), maxSources-len(all))] {
				s.uri = withArch(uri, arch)
				s.suite = withArch(suite, arch)
				all = append(all, s)
			}
		}
	}

	return all
}

// isNo reports whether apt takes a text for no: StringToBool in apt-pkg/contrib/strutl.cc.
func isNo(text string) bool {
	switch strings.ToLower(text) {
	case "no", "false", "without", "off", "disable", "0":
		return true
	}
	return false
}

// valuesOf returns the values of a paragraph, without comments and each on one line, by the names
// of their fields in lower case.
func valuesOf(paragraph []byte) map[string]string {
	values := map[string]string{}
	for key, value := range fields(paragraph) {
		var words []string
		for line := range strings.Lines(string(value)) {
			if !strings.HasPrefix(line, "#") {
				words = append(words, strings.Fields(line)...)
			}
		}

		name := strings.ToLower(strings.TrimSpace(string(key)))
		values[name] = strings.Join(words, " ")
	}

	return values
}

func withArch(s string, arch func() string) string {
	if !strings.Contains(s, "$(ARCH)") {
		return s
	}
	return strings.ReplaceAll(s, "$(ARCH)", arch())
}

// keyFiles returns the paths in Signed-By, which may also have fingerprints, or a whole key.
func keyFiles(signedBy string) (files []string) {
	separates := func(r rune) bool { return r == ' ' || r == ',' }
	for _, word := range strings.FieldsFunc(signedBy, separates) {
		if strings.HasPrefix(word, "/") {
			files = append(files, word)
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

	uri = withoutUser(withoutScheme(uri))

	const escaped = "\\|{}[]<>\"^~_=!@#$%^&*"
	var b strings.Builder
	for _, c := range []byte(uri) {
		switch {
		case c == '/':
			b.WriteByte('_')
		case strings.IndexByte(escaped, c) >= 0 || c <= 0x20 || c >= 0x7f:
			fmt.Fprintf(&b, "%%%02x", c)
		default:
			b.WriteByte(c)
		}
	}

	return b.String()
}

func withoutScheme(uri string) string {
	for _, sign := range []string{"://", ":"} { // http://vendor/repo, file:/srv/repo
		if _, rest, ok := strings.Cut(uri, sign); ok {
			return rest
		}
	}
	return uri
}

func withoutUser(uri string) string {
	host, rest, _ := strings.Cut(uri, "/")
	at := strings.LastIndex(host, "@")
	if at < 0 {
		return uri
	}
	return host[at+1:] + "/" + rest
}

// allSources reads every file that apt takes its sources from. It skips an unreadable file, which
// apt reports.
func allSources(v host.View) []source {
	files := []string{"/etc/apt/sources.list"}
	for _, name := range packages.ListOf(v, "/etc/apt/sources.list.d") {
		if path.Ext(name) == ".list" || path.Ext(name) == ".sources" {
			files = append(files, "/etc/apt/sources.list.d/"+name)
		}
	}

	all, _ := sourcesIn(v, files)
	return all
}

// sourcesIn reads files of sources.
func sourcesIn(v host.View, files []string) ([]source, error) {
	arch := sync.OnceValue(func() string { return architecture(v) })
	return packages.ReadAll(v, files, func(file string, data []byte) []source {
		return parseSources(file, data, arch)
	})
}

func architecture(v host.View) string {
	status, _ := v.ReadFile(facts.DpkgStatus)
	return nativeArch(v, status)
}
