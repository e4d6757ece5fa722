// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
)

// tomlTable is a table to be written, its keys in the order they shall stand. Values are those of tomlTree, or tomlTable.
type tomlTable []tomlPair

type tomlPair struct {
	key   string
	value any
}

func (t tomlTable) asMap() map[string]any {
	m := make(map[string]any, len(t))
	for _, p := range t {
		if sub, ok := p.value.(tomlTable); ok {
			m[p.key] = sub.asMap()
		} else {
			m[p.key] = p.value
		}
	}
	return m
}

// tomlKeyText writes one part of a key, bare where TOML allows it.
func tomlKeyText(name string, quote byte) string {
	bare := name != ""
	for _, c := range []byte(name) {
		bare = bare && (c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z')
	}
	if bare {
		return name
	}
	return tomlString(name, quote)
}

func tomlString(s string, quote byte) string {
	plain := !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
	if quote == '\'' && plain && !strings.Contains(s, "'") {
		return "'" + s + "'"
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, "\\u%04X", r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// tomlText writes a value on one line.
func tomlText(v any, quote byte) (string, error) {
	switch v := v.(type) {
	case string:
		if !utf8.ValidString(v) {
			return "", fmt.Errorf("cannot write %q: it is not UTF-8", v)
		}
		return tomlString(v, quote), nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return tomlFloat(v), nil
	case time.Time:
		return v.Format(time.RFC3339Nano), nil
	case toml.LocalDate, toml.LocalTime, toml.LocalDateTime:
		return fmt.Sprint(v), nil
	case []any:
		return tomlArray(v, quote)
	case map[string]any:
		return tomlInlineText(sortedTable(v), quote)
	case tomlTable:
		return tomlInlineText(v, quote)
	}
	return "", fmt.Errorf("cannot write a value of type %T", v)
}

func tomlFloat(v float64) string {
	switch {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

func tomlArray(v []any, quote byte) (string, error) {
	parts := make([]string, len(v))
	for i, e := range v {
		s, err := tomlText(e, quote)
		if err != nil {
			return "", err
		}
		parts[i] = s
	}
	return "[" + strings.Join(parts, ", ") + "]", nil
}

func tomlInlineText(t tomlTable, quote byte) (string, error) {
	if len(t) == 0 {
		return "{}", nil
	}
	parts := make([]string, len(t))
	for i, p := range t {
		s, err := tomlText(p.value, quote)
		if err != nil {
			return "", err
		}
		parts[i] = tomlKeyText(p.key, quote) + " = " + s
	}
	return "{ " + strings.Join(parts, ", ") + " }", nil
}

func sortedTable(m map[string]any) tomlTable {
	t := make(tomlTable, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		t = append(t, tomlPair{k, m[k]})
	}
	return t
}

// tomlEqual compares values with their types: 1 is not 1.0, and nan is nan.
func tomlEqual(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, tomlEqual)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, tomlEqual)
	case float64:
		b, ok := b.(float64)
		return ok && (a == b || math.IsNaN(a) && math.IsNaN(b))
	case time.Time:
		b, ok := b.(time.Time)
		if !ok {
			return false
		}
		_, x := a.Zone()
		_, y := b.Zone()
		return a.Equal(b) && x == y
	}
	return reflect.TypeOf(a) == reflect.TypeOf(b) && a == b
}

// tomlCopy is a copy that shares no table or array with v.
func tomlCopy(v any) any {
	switch v := v.(type) {
	case map[string]any:
		return copyTable(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = tomlCopy(v[i])
		}
		return out
	}
	return v
}

func copyTable(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = tomlCopy(v)
	}
	return out
}

// tomlDepthOf counts tables in tables, through arrays too.
func tomlDepthOf(v any) int {
	deepest := 0
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			deepest = max(deepest, 1+tomlDepthOf(e))
		}
	case []any:
		for _, e := range v {
			deepest = max(deepest, tomlDepthOf(e))
		}
	}
	return deepest
}
