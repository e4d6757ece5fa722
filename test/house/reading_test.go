// SPDX-License-Identifier: Apache-2.0

package house

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestReadsDown: the files of the engine use only files that come later in the order of reading, which
// the package's comment states.
func TestReadsDown(t *testing.T) {
	const folder = "../../internal/converge"
	source := string(must.Get(os.ReadFile(folder + "/converge.go"))(t))
	comment, _, _ := strings.Cut(source, "\npackage ")
	var order []string
	for _, line := range regexp.MustCompile(`(?m)^//   - .*: (.*)$`).FindAllStringSubmatch(comment, -1) {
		order = append(order, strings.Split(line[1], ", ")...)
	}

	for _, name := range must.Get(filepath.Glob(folder + "/*.go"))(t) {
		base := path.Base(name)
		isListed := slices.Contains(order, base) || strings.HasSuffix(base, "_test.go")
		check.That(t, isListed, "%s is not in the order of reading in converge.go", base)
	}

	for _, use := range usesBetweenFiles(t, folder, order) {
		goesDown := slices.Index(order, use.in) < slices.Index(order, use.of)
		check.That(t, goesDown, "%s uses %s of %s, which comes before it in the order of reading", use.in, use.name, use.of)
	}
}

// TestFactsAreListed: the order of reading of the facts names each of the package's files, and no
// other.
func TestFactsAreListed(t *testing.T) {
	const folder = "../../internal/facts"
	source := string(must.Get(os.ReadFile(folder + "/facts.go"))(t))
	comment, _, _ := strings.Cut(source, "\npackage ")
	listed := regexp.MustCompile(`\w+\.go`).FindAllString(comment, -1)

	var files []string
	for _, name := range must.Get(filepath.Glob(folder + "/*.go"))(t) {
		if !strings.HasSuffix(name, "_test.go") {
			files = append(files, path.Base(name))
		}
	}
	slices.Sort(listed)
	check.That(t, slices.Equal(listed, files), "the order of reading names\n%q, and the files are\n%q", listed, files)
}

// A use is a name of one file that another file of the package uses.
type use struct{ in, of, name string }

// usesBetweenFiles finds the uses of constants, types, functions and methods of a package. It does not
// read other packages, so it sees no method that is called on their values.
func usesBetweenFiles(t *testing.T, folder string, names []string) (uses []use) {
	positions := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		files = append(files, must.Get(parser.ParseFile(positions, folder+"/"+name, nil, 0))(t))
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{
		Importer: noImports{},
		Error:    func(error) {}, // the other packages are missing
	}
	pkg, _ := config.Check(folder, positions, files, &info)

	fileOf := func(at token.Pos) string { return path.Base(positions.Position(at).Filename) }
	for id, object := range info.Uses {
		if object.Pkg() != pkg || !isOfPackage(object) {
			continue
		}
		if in, of := fileOf(id.Pos()), fileOf(object.Pos()); in != of {
			uses = append(uses, use{in, of, object.Name()})
		}
	}

	must.That(t, len(uses) > 100, "only %d uses were found between %d files", len(uses), len(names))
	return uses
}

// isOfPackage reports whether a name belongs to the package, not to a function; fields do not count.
func isOfPackage(object types.Object) bool {
	if _, isFunc := object.(*types.Func); isFunc {
		return true
	}
	return object.Parent() == object.Pkg().Scope()
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) {
	return nil, errors.New("not read")
}
