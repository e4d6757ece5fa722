// SPDX-License-Identifier: Apache-2.0

package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestSorting: what is linked into gpuadm sorts lists by sorting.By, which takes a tenth of the
// program that slices.SortFunc does.
func TestSorting(t *testing.T) {
	costly := []string{"SortFunc", "SortStableFunc", "SortedFunc", "SortedStableFunc"}

	seen := 0
	for _, p := range ourPackages(t) {
		folder := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(folder, "test/") || strings.HasPrefix(folder, "images/") {
			continue
		}
		for _, name := range p.GoFiles {
			files := token.NewFileSet()
			file := must.Get(parser.ParseFile(files, filepath.Join("../..", p.ImportPath[len(module)-1:], name), nil, 0))(t)
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				from, _ := call.X.(*ast.Ident)
				if from == nil {
					return true
				}
				if from.Name == "sorting" && call.Sel.Name == "By" {
					seen++
				}
				if from.Name == "slices" && slices.Contains(costly, call.Sel.Name) {
					t.Errorf("%s: slices.%s: use sorting.By", files.Position(call.Pos()), call.Sel.Name)
				}
				return true
			})
		}
	}

	check.That(t, seen >= 25, "only %d calls of sorting.By are found: this test looks for the wrong call", seen)
}
