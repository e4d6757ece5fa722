// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// TOML is the spec as one file, in its canonical form: the sections that are there, with all their
// keys and nothing else. Parse reads it back as the same Spec.
func (s Spec) TOML() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "format = %d\n", format)
	rows := table()
	keys := func(section string) {
		for _, r := range rows {
			if r.Section == section && r.Section != "" {
				fmt.Fprintf(&b, "%s = %s\n", r.Name, literal(r.ref(&s)))
			}
		}
	}
	for _, name := range sectionNames(rows) {
		if !s.Has(name) {
			continue
		}
		fmt.Fprintf(&b, "\n[%s]\n", name)
		keys(name)
		for _, sub := range []string{name + ".repo", name + ".runfile"} {
			if s.Has(sub) {
				fmt.Fprintf(&b, "\n[%s]\n", sub)
				keys(sub)
			}
		}
		if name == "mig" {
			// A row looks at the last GPU and its last placement, so the others must be out of its
			// sight.
			for _, gpu := range s.MIG.GPU {
				b.WriteString("\n[[mig.gpu]]\n")
				one := gpu
				s.MIG.GPU = []MIGGPU{one}
				keys("mig.gpu")
				for _, p := range gpu.Placements {
					b.WriteString("\n[[mig.gpu.placements]]\n")
					one.Placements = []Placement{p}
					s.MIG.GPU = []MIGGPU{one}
					keys("mig.gpu.placements")
				}
			}
		}
	}
	return []byte(b.String())
}

// literal writes a value that a row points to.
func literal(ref any) string {
	switch v := ref.(type) {
	case *string:
		return quote(*v)
	case *int:
		return strconv.Itoa(*v)
	case *bool:
		return fmt.Sprint(*v)
	case *[]string:
		return list(*v, quote)
	case *[]Taint:
		return list(*v, func(t Taint) string { return quote(t.String()) })
	case *Devices:
		if v.All {
			return `"all"`
		}
		return list(v.Index, strconv.Itoa)
	case *map[string]string:
		return inline(*v, quote)
	case *map[string]int:
		return inline(*v, strconv.Itoa)
	}
	panic(fmt.Sprintf("internal error: no literal for %T", ref))
}

func list[T any](values []T, text func(T) string) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = text(v)
	}
	return "[" + strings.Join(words, ", ") + "]"
}

func inline[T any](values map[string]T, text func(T) string) string {
	words := make([]string, 0, len(values))
	for _, k := range slices.Sorted(maps.Keys(values)) {
		words = append(words, quote(k)+" = "+text(values[k]))
	}
	if len(words) == 0 {
		return "{}"
	}
	return "{ " + strings.Join(words, ", ") + " }"
}

// quote writes a TOML string. Go's quoting is not TOML's: TOML has no \a and no \v.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c < 0x20 || c == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, c)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
