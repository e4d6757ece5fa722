// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"io/fs"
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

// cell is a line of the lab's matrix: distribution, source, branch, GPU, how far the lab goes.
var cell = regexp.MustCompile(`(?m)^(\S+) +(\S+) +(\d+) .*? (installed|planned): `)

// TestSupportMatrix: the table of docs/support.md has what the lab's matrix has, no more and no less.
func TestSupportMatrix(t *testing.T) {
	matrix, page := read(t, "../lab/testdata/matrix.txt"), read(t, "../../docs/support.md")
	far := map[[3]string]bool{} // whether it is installed
	for _, m := range cell.FindAllStringSubmatch(matrix, -1) {
		k := [3]string{m[1], m[2], m[3]}
		far[k] = far[k] || m[4] == "installed"
	}

	for _, d := range []struct{ id, name, on string }{
		{"debian12", "Debian 12", "a Debian 12 host"},
		{"debian13", "Debian 13", "a Debian 13 host"},
		{"ubuntu2204", "Ubuntu 22.04", "a Debian 12 host"},
		{"ubuntu2404", "Ubuntu 24.04", "a Debian 12 host"},
		{"ubuntu2604", "Ubuntu 26.04", "a Debian 12 host"},
		{"rhel8", "RHEL 8 and rebuilds", "an RPM host"},
		{"rhel9", "RHEL 9 and rebuilds", "an RPM host"},
		{"rhel10", "RHEL 10 and rebuilds", "an RPM host"},
		{"amzn2023", "Amazon Linux 2023", "an RPM host"},
		{"azl3", "Azure Linux 3", "an RPM host"},
	} {
		branches := func(source string) string {
			var list []string
			for k, installed := range far {
				if k[0] != d.id || k[1] != source {
					continue
				}
				branch := k[2]
				if !installed {
					branch = "(" + branch + ")"
				}
				list = append(list, branch)
				delete(far, k)
			}

			if list == nil {
				return "–"
			}
			slices.SortFunc(list, func(a, b string) int {
				return strings.Compare(strings.Trim(a, "("), strings.Trim(b, "("))
			})
			return strings.Join(list, " ")
		}

		row := fmt.Sprintf("| %s | %s | %s | %s |\n", d.name, branches("nvidia"), branches("distro"), d.on)
		check.That(t, strings.Contains(page, row), "docs/support.md has no row\n%s", row)
	}

	check.That(t, len(far) == 0, "docs/support.md leaves out %v", far)
}

// TestClaims: each promise of docs/support.md names tests that there are, and the node.toml of
// README is the one that is planned in test/script/readme.txtar.
func TestClaims(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "../../docs/support.md"), "\n## What it promises, and the test that holds it\n")
	table, _, _ = strings.Cut(table, "\n\n## ")
	var tests strings.Builder
	must.OK(t, filepath.WalkDir("../..", func(name string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, "_test.go") {
			tests.WriteString(read(t, name))
		}
		return err
	}))
	rows := strings.Split(table, "\n| ")[2:]
	check.That(t, len(rows) >= 10, "%d promises: %s", len(rows), table)
	for _, row := range rows {
		named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(row, -1)
		check.That(t, len(named) > 0, "no test is named: %s", row)
		for _, m := range named {
			check.That(t, strings.Contains(tests.String(), "\nfunc "+m[1]+"(t *testing.T) {"), "there is no %s: %s", m[1], row)
		}
	}

	_, spec, _ := strings.Cut(read(t, "../script/readme.txtar"), "-- node.toml --\n")
	check.Has(t, read(t, "../../README.md"), "node.toml\n"+spec+"\n$ sudo gpuadm plan\n", "README has another node.toml:")
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

// TestLinks: what our pages link to in the project is there.
func TestLinks(t *testing.T) {
	pages := must.Get(filepath.Glob("../../docs/*.md"))(t)
	top := must.Get(filepath.Glob("../../*.md"))(t)
	n := 0
	for _, page := range append(pages, top...) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			n++
			if _, err := os.Stat(path.Join(path.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}

	check.That(t, n >= 50, "found only %d links", n)
}

func read(t *testing.T, name string) string {
	t.Helper()
	data := must.Get(os.ReadFile(name))(t)
	return string(data)
}

// TestWhereToLook: the files that ARCHITECTURE.md has a newcomer open are there.
func TestWhereToLook(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "../../ARCHITECTURE.md"), "\n## Where to look\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| .+ \\| `([^`]+)`(?:, `([^`]+)`)? \\|$").FindAllStringSubmatch(table, -1)
	check.That(t, len(rows) == 10, "%d tasks", len(rows))
	for _, row := range rows {
		for _, name := range row[1:] {
			_, err := os.Stat(path.Join("../..", name))
			check.That(t, err == nil, "%v", err)
		}
	}
}
