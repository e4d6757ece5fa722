// SPDX-License-Identifier: Apache-2.0

package house

import (
	_ "embed"
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const module = "github.com/gpuadm/gpuadm/"

//go:embed testdata/imports.txt
var importsText string

//go:embed testdata/only-in.txt
var onlyInText string

// rows reads a table: a package to a line, and after the colon the packages that go with it.
func rows(text string) map[string][]string {
	all := map[string][]string{}
	for line := range strings.Lines(text) {
		name, with, _ := strings.Cut(line, ":")
		all[name] = strings.Fields(with)
	}

	return all
}

// mayImport is the architecture: which of gpuadm's packages each may import. Data goes one way,
// spec + facts → wants → changes → touches → events → words.
var mayImport = rows(importsText)

// onlyIn says where alone a package of others may be imported. "test" is anything below test/.
var onlyIn = rows(onlyInText)

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	GoFiles    []string
}

func ourPackages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Imports,GoFiles", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	must.That(t, err == nil, "cannot list packages: %v", err)
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}

		all = append(all, p)
	}
}

func TestImports(t *testing.T) {
	for _, p := range ourPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if name == "test" || strings.HasPrefix(name, "test/") {
			continue
		}
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("%s has no line in mayImport: say what it may import", name)
			continue
		}
		for _, imp := range p.Imports {
			of := strings.TrimPrefix(imp, module)
			check.That(t, of == imp || slices.Contains(allowed, of), "%s imports %s: the arrows go the other way", name, of)
			check.That(t, imp != "runtime" || name != "runtime", "%s imports the standard package of its own name", name)
			for imported, where := range onlyIn {
				check.That(t, (imp != imported && !strings.HasPrefix(imp, imported+"/")) || slices.Contains(where, name), "%s imports %s: only %v may", name, imp, where)
			}
		}
	}
}

// TestPackageDocs wants every package to open with a sentence that a newcomer understands.
func TestPackageDocs(t *testing.T) {
	for _, p := range ourPackages(t) {
		check.That(t, len(p.GoFiles) == 0 || len(p.Doc) >= 30, "%s has no package comment", p.ImportPath)
	}
}
