// SPDX-License-Identifier: Apache-2.0

package toml

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

// Table is a table to be written, its keys in the order of the lines. Values are those of Values,
// or Table.
type Table []Pair

// Pair is a key of a Table.
type Pair struct {
	Key   string
	Value any
}

// With is the table with one more key at its end.
func (t Table) With(key string, value any) Table {
	return append(t[:len(t):len(t)], Pair{key, value})
}

func (t Table) asMap() map[string]any {
	m := make(map[string]any, len(t))
	for _, p := range t {
		if sub, ok := p.Value.(Table); ok {
			m[p.Key] = sub.asMap()
		} else {
			m[p.Key] = p.Value
		}
	}

	return m
}

// KeyText writes one part of a key, bare where TOML allows it.
func KeyText(name string, quote byte) string {
	if name != "" && !strings.ContainsFunc(name, mustBeQuoted) {
		return name
	}
	return stringText(name, quote)
}

// mustBeQuoted reports whether a sign cannot be part of a bare key.
func mustBeQuoted(r rune) bool {
	switch {
	case r >= '0' && r <= '9', r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z', r == '-', r == '_':
		return false
	}
	return true
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

func stringText(s string, quote byte) string {
	literal := !strings.ContainsFunc(s, isControl) && !strings.Contains(s, "'")
	if quote == '\'' && literal {
		return "'" + s + "'"
	}

	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case isControl(r):
			fmt.Fprintf(&b, "\\u%04X", r)
		default:
			b.WriteRune(r)
		}
	}

	b.WriteByte('"')
	return b.String()
}

// Text writes a value on one line.
func Text(v any, quote byte) (string, error) {
	switch v := v.(type) {
	case string:
		if !utf8.ValidString(v) {
			return "", fmt.Errorf("cannot write %q: it is not UTF-8", v)
		}
		return stringText(v, quote), nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return floatText(v), nil
	case time.Time:
		return v.Format(time.RFC3339Nano), nil
	case toml.LocalDate, toml.LocalTime, toml.LocalDateTime:
		return fmt.Sprint(v), nil
	case []any:
		return arrayText(v, quote)
	case map[string]any:
		return inlineText(Sorted(v), quote)
	case Table:
		return inlineText(v, quote)
	}
	return "", fmt.Errorf("cannot write a value of type %T", v)
}

func floatText(v float64) string {
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

func arrayText(v []any, quote byte) (string, error) {
	parts := make([]string, len(v))
	for i, e := range v {
		s, err := Text(e, quote)
		if err != nil {
			return "", err
		}
		parts[i] = s
	}

	return "[" + strings.Join(parts, ", ") + "]", nil
}

func inlineText(t Table, quote byte) (string, error) {
	if len(t) == 0 {
		return "{}", nil
	}
	parts := make([]string, len(t))
	for i, p := range t {
		s, err := Text(p.Value, quote)
		if err != nil {
			return "", err
		}
		parts[i] = KeyText(p.Key, quote) + " = " + s
	}

	return "{ " + strings.Join(parts, ", ") + " }", nil
}

// Sorted is a table with its keys in order.
func Sorted(m map[string]any) Table {
	t := make(Table, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		t = append(t, Pair{k, m[k]})
	}
	return t
}

// Equal compares values with their types: 1 is not 1.0, and nan is nan.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, Equal)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, Equal)
	case float64:
		b, ok := b.(float64)
		return ok && (a == b || math.IsNaN(a) && math.IsNaN(b))
	case time.Time:
		b, ok := b.(time.Time)
		if !ok {
			return false
		}
		_, offsetA := a.Zone()
		_, offsetB := b.Zone()
		return a.Equal(b) && offsetA == offsetB
	}
	return reflect.TypeOf(a) == reflect.TypeOf(b) && a == b
}

// Copy is a copy that shares no table or array with v.
func Copy(v any) any {
	switch v := v.(type) {
	case map[string]any:
		return CopyTable(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = Copy(v[i])
		}
		return out
	}
	return v
}

// CopyTable is Copy of a table.
func CopyTable(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = Copy(v)
	}
	return out
}

// Depth counts tables in tables, through arrays too.
func Depth(v any) int {
	deepest := 0
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			deepest = max(deepest, 1+Depth(e))
		}
	case []any:
		for _, e := range v {
			deepest = max(deepest, Depth(e))
		}
	}

	return deepest
}

// Show is a value in a message: what it is where it is long, and "nothing" for nil.
func Show(v any) string {
	s, err := Text(v, '"')
	if err == nil && len(s) <= 60 {
		return s
	}
	switch v.(type) {
	case nil:
		return "nothing"
	case []any:
		return "a long array"
	case map[string]any, Table:
		return "a long table"
	}
	return fmt.Sprintf("a long %T", v)
}

// ShowPath is a path in a message, its parts quoted where TOML asks for it.
func ShowPath(path []string) string {
	parts := make([]string, len(path))
	for i, p := range path {
		parts[i] = KeyText(p, '"')
	}
	return strings.Join(parts, ".")
}

// Field finds a key as programs do that decode TOML into fields of their own with go-toml, of
// either version: they do not mind upper and lower case. Of several spellings the exact one counts,
// else the last in order: such a program takes the last in the file.
func Field(t map[string]any, name string) (key string, value any) {
	if v, ok := t[name]; ok {
		return name, v
	}
	key = name
	for k, v := range t {
		if strings.EqualFold(k, name) && (value == nil || k > key) {
			key = k
			value = v
		}
	}

	return key, value
}

// Sub follows tables down from t, by names in any case as Field does; nil if one of them is
// missing.
func Sub(t map[string]any, names ...string) map[string]any {
	for _, name := range names {
		_, v := Field(t, name)
		t, _ = v.(map[string]any)
	}
	return t
}

// String is a string field, "" if it is missing or no string.
func String(t map[string]any, name string) string {
	_, v := Field(t, name)
	s, _ := v.(string)
	return s
}

// Strings is a field that is an array of strings; nil if it is missing or something else.
func Strings(t map[string]any, name string) []string {
	_, v := Field(t, name)
	list, isList := v.([]any)
	if !isList {
		return nil
	}

	all := []string{}
	for _, element := range list {
		text, isText := element.(string)
		if !isText {
			return nil
		}
		all = append(all, text)
	}

	return all
}
