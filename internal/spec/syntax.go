// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A parser reports where it stopped. A user needs the place of the fault and the fix: in practice
// most invalid TOML is text without quotes.

// syntax turns the parser's error at an offset, in the expression that begins at start, into a
// finding and its place.
func (b *builder) syntax(start, at int, message string) (int, *trouble.Error) {
	data := b.src.data
	line := span{start, b.src.lineSpan(b.src.lineOf(start)).end}
	opened := b.valueStart(start)
	byteAt := func(at int) byte { return append(data[at:len(data):len(data)], 0)[0] }
	fix := `write key = value, with text in "quotes"`
	const ours = "a spec is TOML, with key = value below a [section]; gpuadm help spec lists them"
	for _, other := range []struct{ begins, has, is, fix string }{
		{"<<<<<<<", "", "the mark of a merge conflict", "keep one of the two sides, and take the marks out"},
		{"{", "", "this is JSON", ours},
		{"", "mig-configs:", "this is YAML, of mig-parted", `name this file in node.toml: file = "…" in [mig]`},
		{"", "apiVersion:", "this is a manifest of Kubernetes, in YAML", ours},
	} {
		if bytes.HasPrefix(data[start:], []byte(other.begins)) && bytes.Contains(data, []byte(other.has)) {
			return start, wrong(other.fix, "%s", other.is)
		}
	}
	switch header := byteAt(start) == '['; {
	case header:
		fix = "write the section's name in brackets, on a line of its own: [driver]"
	case at >= len(data)-1 && regexp.MustCompile("incomplete|terminated|end of input").MatchString(message):
		switch byteAt(opened) {
		case '[':
			return opened, wrong("write the missing bracket", "invalid TOML: the list that begins here is not closed")
		case '{':
			return opened, wrong("write the missing bracket", "invalid TOML: the table that begins here is not closed")
		case '"', '\'':
			return opened, wrong("write the missing quote", "invalid TOML: the text that begins here is not closed")
		}
		return opened, wrong(`write one, text in "quotes"`, "invalid TOML: the value is missing")
	case at <= line.end:
		if at, f := b.bareText(line); f != nil {
			return at, f
		}
		if bytes.HasPrefix(data[at:], []byte("\u00a0")) {
			fix = "write a plain space: there is a NO-BREAK SPACE"
		} else if strings.HasPrefix(message, "expected '='") && byteAt(at) == ':' {
			fix = "write = in place of the colon"
		} else if strings.HasPrefix(message, "expected '='") && byteAt(at) == '/' {
			fix = "put the whole name in quotes: \"example.com/pool\" = \"gpu\""
		}
	}
	bracket := "put a comma between the elements, or write the missing bracket"
	if first := b.src.lineOf(opened); first != b.src.lineOf(at) {
		bracket = "put a comma between the elements, or close the bracket opened on line " + strconv.Itoa(first+1)
	}
	for _, known := range []struct{ words, says, fix string }{
		{"cannot have new lines", "the text is not closed on its line", "close the quotes on the same line"},
		{"escape", message, `write \\ for a backslash, or put the text in 'single quotes'`},
		{"after (array value|inline table key-value)", message, bracket},
		{"leading zeroes", message, "put quotes around text; write a number without leading zeroes"},
		{"control character|carriage return", message, "take the invisible character out"},
		{"expected newline", "nothing may follow on this line", fix},
		{`unexpected character U\+00(0A|0D|23)`, "the value is missing", `write one, text in "quotes"`},
		{"unexpected character", "text needs quotes", fix},
	} {
		if regexp.MustCompile(known.words).MatchString(message) {
			message, fix = known.says, known.fix
			break
		}
	}
	return at, wrong(fix, "invalid TOML: %s", message)
}

// bareText recognises a value that lacks its quotes: engine = containerd, version = 580.95.05, cdi
// = True.
func (b *builder) bareText(line span) (int, *trouble.Error) {
	text := b.src.data[line.start:line.end]
	m := regexp.MustCompile(`^([\w.-]+)[ \t]*=[ \t]*([^\s"'\[{#=][^"'#=]*?)[ \t\r]*(?:#.*)?$`).FindSubmatchIndex(text)
	if m == nil || len(b.src.secrets) > 0 && b.src.secrets[len(b.src.secrets)-1].end > line.start {
		return 0, nil
	}
	key, raw := string(text[m[2]:m[3]]), string(text[m[4]:m[5]])
	at := line.start + m[4]
	if r := b.row(key); r != nil && (r.Type == TypeBool || r.Type == TypeInt) {
		return at, wrong("write "+suggestion(*r, &value{text: raw}), "invalid TOML: %s is no %s", show(raw), r.Type)
	}
	says := "text needs quotes"
	if plain := strings.Trim(raw, "“”„‟‘’‚«»"); plain != raw {
		raw, says = plain, "text needs straight quotes"
	}
	return at, wrong("write "+key+" = "+show(raw), "invalid TOML: %s", says)
}

// row returns the row of a key under the current header, nil if there is none.
func (b *builder) row(key string) *row {
	section := ""
	for _, p := range b.header {
		section = strings.TrimPrefix(section+"."+p.name, ".")
	}
	return (&decoder{rows: b.rows}).row(section, key)
}

// File is one file of a spec: its name, for messages, and its content.
type File struct {
	Name string
	Data []byte
}

// Parse reads node.toml and the files of node.d, in this order; later ones win by key. Labels,
// taints and the driver's parameters are merged by their own keys, all other lists replace.
//
// The error is of type trouble.Faults and lists all faults in all files; the Spec is then empty. A
// file that is not TOML has one fault, and the other files are still checked. Files are at most 1
// MiB, and at most 100.
func Parse(files ...File) (Spec, error) {
	s, _, err := Read(files...)
	return s, err
}

// Read is Parse. It also returns the place of each key, for faults that only the machine shows: a
// driver that fits no GPU.
func Read(files ...File) (Spec, Places, error) {
	rows := table()
	d := &decoder{rows: rows, spec: defaults(rows), places: map[string]place{}}
	if len(files) == 0 {
		none := newSource(File{})
		none.addf(0, "write /etc/gpuadm/node.toml, beginning with format = 1", "no file is given")
		return Spec{}, Places{}, none.finish()
	}
	var sources []*source
	whole := true // every file is TOML in a known format
	for i, f := range files {
		if i == maxFiles {
			src := newSource(File{Name: f.Name})
			src.addf(0, "put some of them together", "more than %d files", maxFiles)
			sources = append(sources, src)
			break
		}
		src := newSource(f)
		sources = append(sources, src)
		root := src.read(rows)
		whole = root != nil && d.file(src, root, i == 0) && whole
		if root != nil && len(src.errors) == 0 {
			src.judge()
		}
	}
	if whole {
		d.cross()
	}
	var all trouble.Faults
	for _, src := range sources {
		all = append(all, src.finish()...)
	}
	if len(all) > 0 {
		return Spec{}, Places{}, all
	}
	return d.result(), Places{d.places, sources[0]}, nil
}

// Places has the places at which the files of a valid spec state its keys.
type Places struct {
	of    map[string]place
	first *source
}

// Error returns a fault at the first of the keys, such as "driver.version" or "mig.gpu", that a
// file states; else in the first file.
func (p Places) Error(message, fix string, keys ...string) *trouble.Error {
	src, at := p.first, 0
	for _, key := range slices.Backward(keys) {
		if of := p.of[key]; of.src != nil {
			src, at = of.src, of.at
		}
	}
	src.errors, src.full = nil, false
	src.addf(at, fix, "%s", message)
	return src.finish()[0]
}

// read checks the bytes and parses them. If they are no TOML, it returns nil and notes the error.
func (s *source) read(rows []row) *value {
	if len(s.data) > maxSize {
		s.addf(0, "split it, or take out what is not a spec", "the file has %d bytes; at most %d are read", len(s.data), maxSize)
		s.data, s.lines = nil, []int{0} // parse nothing, not even the line to show
		return nil
	}
	if n := bytes.Count(s.data, []byte("=")) + bytes.Count(s.data, []byte("\n[")); n > maxKeys {
		s.addf(0, "split it, or take out what is not a spec", "the file has %d keys and tables; at most %d are read", n, maxKeys)
		return nil
	}
	for i := 0; i < len(s.data); {
		r, size := utf8.DecodeRune(s.data[i:])
		switch {
		case r == 0:
			s.addf(i, "take it out; save the file as plain text", "a NUL byte")
		case r == utf8.RuneError && size == 1:
			s.addf(i, "save the file as UTF-8", "the byte 0x%02x is not UTF-8", s.data[i])
		default:
			i += size
			continue
		}
		if bytes.HasPrefix(s.data, []byte("\xff\xfe")) || bytes.HasPrefix(s.data, []byte("\xfe\xff")) {
			s.errors = nil
			s.addf(0, "save the file as UTF-8", "the file is UTF-16, not UTF-8")
		}
		s.secrets = brokenSecrets(s.data, 0)
		return nil
	}
	return s.tree(rows)
}

// result returns the Spec with its lists in canonical order.
func (d *decoder) result() Spec {
	s := d.spec
	sections := s.Sections[:0:0]
	for _, name := range sectionNames(d.rows) {
		if slices.Contains(s.Sections, name) {
			sections = append(sections, name)
		}
	}
	s.Sections = sections
	if len(s.Node.Taints) == 0 {
		s.Node.Taints = nil // an empty list after removals equals no list
	}
	slices.SortFunc(s.Node.Taints, func(a, b Taint) int {
		return strings.Compare(a.Key+":"+a.Effect, b.Key+":"+b.Effect)
	})
	for i := range s.MIG.GPU {
		gpu := &s.MIG.GPU[i]
		slices.SortFunc(gpu.Placements, func(a, b Placement) int {
			return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Profile, b.Profile))
		})
		slices.Sort(gpu.Match)
		gpu.Match = slices.Compact(gpu.Match)
	}
	slices.Sort(s.Disruption.Allow)
	s.Disruption.Allow = slices.Compact(s.Disruption.Allow)
	return s
}

// sectionNames returns the sections without a dot in their names.
func sectionNames(rows []row) []string {
	var names []string
	for _, r := range rows {
		if r.Section != "" && !strings.Contains(r.Section, ".") && !slices.Contains(names, r.Section) {
			names = append(names, r.Section)
		}
	}
	return names
}
