// SPDX-License-Identifier: Apache-2.0

package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// lifetimes lists the files that put a value into a context, and why. What a function is to do is a
// parameter or a field, which a reader sees; a context carries only what lives as long as it does.
var lifetimes = map[string]string{
	"internal/host/host.go":          "KeepDriver: one session with the driver, until the caller ends it",
	"internal/converge/event.go":     "Listen: who hears the engine's events, for as long as one change is made",
	"internal/host/systemd/units.go": "Moment: each unit is asked once, for as long as one snapshot lasts",
}

// TestContextValues finds each context.WithValue of the product.
func TestContextValues(t *testing.T) {
	found := map[string]bool{}
	for _, p := range ourPackages(t) {
		folder := p.ImportPath[len(module):]
		for _, name := range p.GoFiles {
			name = path.Join(folder, name)
			file := must.Get(parser.ParseFile(token.NewFileSet(), filepath.Join("../..", name), nil, 0))(t)
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.SelectorExpr)
				if !ok || call.Sel.Name != "WithValue" {
					return true
				}
				if from, ok := call.X.(*ast.Ident); ok && from.Name == "context" {
					found[name] = true
				}
				return true
			})
		}
	}

	for name := range found {
		known := lifetimes[name] != ""
		check.That(t, known, "%s puts a value into a context: make it a parameter or a field", name)
	}

	for _, name := range slices.Sorted(maps.Keys(lifetimes)) {
		check.That(t, found[name], "%s puts no value into a context: take it off the list", name)
	}
}
