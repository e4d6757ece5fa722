// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"bytes"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

const dataFile = "catalog_data.go"

// TestCatalogData: the catalog that is built in is the one in the folder catalog.
func TestCatalogData(t *testing.T) {
	want := must.Get(parse(os.DirFS("catalog")))(t)
	source := catalogSource(t, want)
	if *update {
		must.OK(t, os.WriteFile(dataFile, source, 0o644))
		return
	}
	if is, err := os.ReadFile(dataFile); err != nil || !bytes.Equal(is, source) {
		t.Fatalf("%s is not made of the catalog's files (%v): make update", dataFile, err)
	}
	if !reflect.DeepEqual(Load(), want) {
		t.Error("what is built in is not what the catalog's files say")
	}
}

// parse reads a catalog from the TOML files of a folder. Unknown keys are refused.
func parse(dir fs.FS) (Catalog, error) {
	var c Catalog
	names, err := fs.Glob(dir, "*.toml")
	if err != nil {
		return Catalog{}, fmt.Errorf("cannot list the catalog's files: %w", err)
	}
	if len(names) == 0 {
		return Catalog{}, fmt.Errorf("cannot read the catalog: it has no TOML files")
	}
	for _, name := range names {
		f, err := dir.Open(name)
		if err != nil {
			return Catalog{}, fmt.Errorf("cannot open the catalog's %s: %w", name, err)
		}
		err = c.decode(f)
		_ = f.Close() // only read
		if err != nil {
			return Catalog{}, fmt.Errorf("cannot read the catalog's %s: %w", name, err)
		}
	}
	return c, nil
}

// TestLoadCostsNothing: each run loads the catalog, and the linker has laid it out. Rows with maps are made, of which there are few.
func TestLoadCostsNothing(t *testing.T) {
	few := 0
	if made := testing.AllocsPerRun(10, func() {
		c := Load()
		few = 4 * (2 + len(c.Exceptions) + len(c.Bulletins))
	}); int(made) > few {
		t.Errorf("to load the catalog takes %v allocations, more than %d", made, few)
	}
}

// catalogSource is Go code of a catalog: what the linker can lay out as data, and a function for tables with maps, which it cannot.
func catalogSource(t *testing.T, c Catalog) []byte {
	t.Helper()
	var data, maps strings.Builder
	all := reflect.ValueOf(c)
	for i := range all.NumField() {
		name, table := all.Type().Field(i).Name, all.Field(i)
		text := literal(t, table)
		if !strings.Contains(text, "map[") {
			fmt.Fprintf(&data, "%s: %s,\n", name, text)
			continue
		}
		fmt.Fprintf(&maps, "c.%s = %s\n", name, text)
	}
	source, err := format.Source([]byte(`// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Code generated from the folder catalog by make update; DO NOT EDIT.

package drivers

// builtin is not written to.
var builtin = Catalog{
` + data.String() + `}

// withMaps adds the tables that have maps.
func (c *Catalog) withMaps() {
` + maps.String() + "}\n"))
	must.OK(t, err)
	return source
}

// literal writes a value as Go does, one row of a table in a line, without fields that are empty.
func literal(t *testing.T, v reflect.Value) string {
	t.Helper()
	var parts []string
	sep := ", "
	switch v.Kind() {
	case reflect.String, reflect.Int, reflect.Bool:
		return fmt.Sprintf("%#v", v.Interface())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct && v.Type().Elem() != reflect.TypeFor[memberRow]() {
			sep = ",\n"
		}
		for i := range v.Len() {
			parts = append(parts, strings.TrimPrefix(literal(t, v.Index(i)), typeName(v.Type().Elem())))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			parts = append(parts, literal(t, k)+": "+literal(t, v.MapIndex(k)))
		}
		slices.Sort(parts)
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				parts = append(parts, v.Type().Field(i).Name+": "+literal(t, v.Field(i)))
			}
		}
	default:
		t.Fatalf("cannot write a %s as data", v.Type())
	}
	text := strings.Join(parts, sep)
	if sep == ",\n" {
		text = "\n" + text + ",\n"
	}
	return typeName(v.Type()) + "{" + text + "}"
}

func typeName(of reflect.Type) string { return strings.ReplaceAll(of.String(), "drivers.", "") }
