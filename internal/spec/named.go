// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// NamesNothing is Key.Names of a key whose text names nothing outside the spec.
const NamesNothing = "-"

// String is the key's name with its section: "driver.repo.key".
func (k Key) String() string { return strings.TrimPrefix(k.Section+"."+k.Name, ".") }

// In is the key as an operator finds it in the file: "key in [driver.repo]".
func (k Key) In() string { return k.Name + " in " + header(k.Section) }

// Named is a key of a spec whose value names something outside the spec, and that value.
type Named struct {
	Key
	Values []string // of a list or a table each one; of a table its keys
}

// Named returns the keys of the spec that name something outside it and that differ from their
// defaults, section by section. The tables of [[mig.gpu]] are not among them: the stage mig reads
// them as a whole.
func (s Spec) Named() (all []Named) {
	for _, r := range table() {
		names := r.Names != "" && r.Names != NamesNothing
		if !names || r.Section == "mig.gpu" || strings.HasPrefix(r.Section, "mig.gpu.") {
			continue
		}
		if values := valuesOf(r.ref(&s)); len(values) > 0 {
			all = append(all, Named{r.Key, values})
		}
	}
	return all
}

// valuesOf returns the values of a field as texts; none of an empty one.
func valuesOf(field any) []string {
	switch is := field.(type) {
	case *string:
		if *is != "" {
			return []string{*is}
		}
	case *[]string:
		return *is
	case *map[string]string:
		return slices.Sorted(maps.Keys(*is))
	case *int:
		if *is != 0 {
			return []string{fmt.Sprint(*is)}
		}
	}
	return nil
}

// At is where a file states the first of the keys that any file states, such as "driver.version" or
// "driver.parameters.NVreg_Name". The zero Position: none of them is stated.
func (p Places) At(keys ...string) trouble.Position {
	for _, key := range keys {
		of := p.of[key]
		if of.src != nil {
			line, column := of.src.position(of.at)
			return trouble.Position{
				File:   of.src.name,
				Line:   line,
				Column: column,
			}
		}
	}
	return trouble.Position{}
}

// Reads says whether gpuadm reads a file of the folder node.d, by its name.
func Reads(name string) bool {
	return strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".")
}
