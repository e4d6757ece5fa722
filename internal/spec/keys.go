// SPDX-License-Identifier: Apache-2.0

package spec

import (
	_ "embed"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The types of values, in words.
const (
	TypeString     = "string"
	TypeBool       = "boolean"
	TypeInt        = "integer"
	TypeStrings    = "list of strings"
	TypeLabels     = "table of strings"
	TypeParameters = "table of strings, integers and booleans"
	TypeCounts     = "table of integers"
	TypeDevices    = `"all" or a list of integers`
)

// Key is one key of node.toml.
type Key struct {
	Section string   // "driver", "driver.repo"; "" for the top of the file; "mig.gpu" is an array of tables
	Name    string   // "version"
	Type    string   // one of the Type constants
	Default string   // as written in TOML; "" where the key must be given
	Allowed []string // the only values, where they are few
	File    bool     // its value names files of the machine
	// Names is what its value names outside the spec, such as "kubeconfig"; NamesNothing; "" of a
	// value that is not text.
	Names string
	Doc   string // one line
}

// Keys returns all keys of node.toml, section by section. Defaults, checks, suggestions and the
// manual are made from it.
func Keys() []Key {
	rows := table()
	keys := make([]Key, len(rows))
	for i, row := range rows {
		keys[i] = row.Key
	}
	return keys
}

// IsSection says whether a spec can have a section of this name.
func IsSection(name string) bool {
	return slices.ContainsFunc(Keys(), func(k Key) bool { return k.Section == name })
}

// Files returns the files of the machine that a spec names: a user who can change one of them
// decides what root does here.
func (s Spec) Files() (names []string) {
	for _, r := range table() {
		if !r.File {
			continue
		}
		switch value := r.ref(&s).(type) {
		case *string:
			if *value != "" {
				names = append(names, *value)
			}
		case *[]string:
			names = append(names, *value...)
		}
	}
	return names
}

// A row is a key, the check of its value, and the value's place in a Spec.
type row struct {
	Key
	check checkFunc // for a string that is not the default
	at    []int     // the numbers of the fields that lead to it
}

// ref returns a pointer to the key's field, of arrays of tables in the last one.
func (r row) ref(s *Spec) any {
	v := reflect.ValueOf(s).Elem()
	for _, i := range r.at {
		if v.Kind() == reflect.Slice {
			v = v.Index(v.Len() - 1)
		}
		v = v.Field(i)
	}

	return v.Addr().Interface()
}

// fields finds the field of a key by its name: driver.gpu_count is Driver.GPUCount.
func fields(key string) (at []int) {
	t := reflect.TypeFor[Spec]()
	for part := range strings.SplitSeq(strings.ReplaceAll(key, "_", ""), ".") {
		if t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		for i := range t.NumField() {
			field := t.Field(i)
			if strings.EqualFold(field.Name, part) {
				t = field.Type
				at = append(at, i)
				break
			}
		}
	}

	return at
}

// called has what other tools and people call keys and values, and what node.toml has in their
// place.
var called = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(calledTable) {
		name, fix, _ := strings.Cut(strings.TrimSpace(line), "\t")
		all[name] = fix
	}

	for _, p := range platform.Joining() {
		fix := "write " + strconv.Quote(p.Join.Method)
		for _, name := range p.Join.Called {
			all["join.method "+name] = fix
		}
		if p.Join.Own {
			through := ": gpuadm works through " + p.Join.By + " where the machine has it"
			all["join.method "+p.Join.By] = fix + through
		}
	}

	return all
})

// calledTable has its rows, and keysTable all keys and sections.
//
//go:embed called.tsv
var calledTable string

//go:embed keys.tsv
var keysTable string

// table returns all keys, which it reads once.
var table = sync.OnceValue(func() []row {
	var rows []row
	section := ""
	byName := checks()
	for line := range strings.Lines(keysTable) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		switch {
		case line[0] == '[':
			section = strings.Trim(cells[0], "[]")
		case line[0] != '#':
			rows = append(rows, newRow(section, cells, byName))
		}
	}

	return rows
})

// checkFunc checks a string, and returns its canonical form.
type checkFunc = func(string) (string, *trouble.Error)

// newRow reads the cells of a line: name, type, default, values and doc. The values are the allowed
// ones, or the name of a check.
func newRow(section string, cells []string, checks map[string]checkFunc) row {
	name, values := cells[0], cells[3]
	ownMethods := strings.Join(platform.OwnMethods(), " or ")
	r := row{
		Key: Key{
			Section: section,
			Name:    name,
			Type:    cells[1],
			Default: cells[2],
			File:    values == "path",
			Names:   cells[4],
			Doc:     strings.Replace(cells[5], "OWN", ownMethods, 1),
		},
		check: checks[values],
	}
	r.at = fields(r.Key.String())
	if strings.Contains(values, "|") {
		platforms := strings.Join(platform.Methods(), "|")
		r.Allowed = strings.Split(strings.Replace(values, "PLATFORMS", platforms, 1), "|")
	}
	return r
}

// checks returns the checks by their names in the table.
func checks() map[string]checkFunc {
	return map[string]checkFunc{
		"driverVersion":  checkDriverVersion,
		"toolkitVersion": checkToolkitVersion,
		"package":        checkPackage,
		"profile":        checkProfile,
		"unit":           checkUnit,
		"handler":        checkHandler,

		"path":        checkPath,
		"repoURL":     checkRepoURL,
		"fileURL":     checkFileURL,
		"digest":      checkDigest,
		"fingerprint": checkFingerprint,

		"server":  checkServer,
		"proxy":   checkProxy,
		"noProxy": checkNoProxy,
		"address": checkAddress,
		"network": checkNetwork,
		"peer":    checkPeer,

		"cluster":      checkCluster,
		"region":       checkRegion,
		"nodeName":     checkNodeName,
		"startupTaint": checkStartupTaint,

		"duration": checkDuration,
		"name":     checkName,
	}
}

// wrong returns a fault of a value, without a place, and its fix.
func wrong(fix, format string, args ...any) *trouble.Error {
	return &trouble.Error{What: fmt.Sprintf(format, args...), Try: []string{fix}}
}

// show quotes a text of a file for a message: without control characters, and shortened.
func show(text string) string {
	return strconv.Quote(clip(text))
}

func clip(text string) string {
	const most = 64
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}

// withArticle returns a type with its article.
func withArticle(kind string) string {
	switch kind {
	case TypeInt:
		return "an " + kind
	case TypeDevices:
		return kind
	}
	return "a " + kind
}

// choice is `one of "a", "b", "c"`.
func choice(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}
	return "one of " + strings.Join(quoted, ", ")
}

func header(section string) string {
	switch section {
	case "":
		return "at the top of the file"
	case "mig.gpu", "mig.gpu.placements":
		return "[[" + section + "]]"
	}
	return "[" + section + "]"
}

// About returns the purpose of a section of node.toml, in one line; "" for the top of the file.
func About(section string) string {
	_, after, _ := strings.Cut(keysTable, "\n["+section+"]\t")
	about, _, _ := strings.Cut(after, "\n")
	return about
}
