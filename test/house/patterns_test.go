// SPDX-License-Identifier: Apache-2.0

package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestPatterns compiles what pattern.Of is given: it would panic only when it is first used, which
// may be in a failure that no test has.
func TestPatterns(t *testing.T) {
	seen := 0
	for _, p := range ourPackages(t) {
		for _, name := range p.GoFiles {
			files := token.NewFileSet()
			file := must.Get(parser.ParseFile(files, filepath.Join("../..", p.ImportPath[len(module)-1:], name), nil, 0))(t)
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				of, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || of.Sel.Name != "Of" {
					return true
				}
				if from, ok := of.X.(*ast.Ident); !ok || from.Name != "pattern" {
					return true
				}
				seen++
				text, ok := call.Args[0].(*ast.BasicLit)
				if !ok {
					t.Errorf("%s: a pattern that is put together cannot be tested here", files.Position(call.Pos()))
					return true
				}
				pattern, err := strconv.Unquote(text.Value)
				if err == nil {
					_, err = regexp.Compile(pattern)
				}
				if err != nil {
					t.Errorf("%s: %v", files.Position(call.Pos()), err)
				}
				return true
			})
		}
	}

	check.That(t, seen >= 25, "only %d patterns are found: this test looks for the wrong call", seen)
}
