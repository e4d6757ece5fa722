// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

const top = "../.."

// TestTable: each test of the labs is in the table once, and each path is in the tree.
func TestTable(t *testing.T) {
	rows := must.Get(readTable())(t)
	for ring, folder := range map[string]string{"lab": "test/lab", "kube": "test/lab/kube"} {
		var listed []string
		for _, r := range rows {
			if r.ring == ring {
				listed = append(listed, r.name)
			}
		}

		slices.Sort(listed)
		check.List(t, listed, testsIn(t, folder), "rings.tsv's tests of %s are", folder)
	}

	for _, r := range rows {
		check.That(t, r.seconds > 0 && len(r.paths) > 0, "%s has no seconds or no path", r.name)
		for _, path := range r.paths {
			found := must.Get(filepath.Glob(filepath.Join(top, path)))(t)
			check.That(t, len(found) > 0, "%s shows %s, which does not exist", r.name, path)
		}
	}
}

func testsIn(t *testing.T, folder string) []string {
	var names []string
	for _, file := range must.Get(filepath.Glob(filepath.Join(top, folder, "*_test.go")))(t) {
		text := string(must.Get(os.ReadFile(file))(t))
		for _, found := range regexp.MustCompile(`(?m)^func (TestLab\w*)\(`).FindAllStringSubmatch(text, -1) {
			names = append(names, found[1])
		}
	}

	slices.Sort(names)
	return names
}

// TestTargets: the Makefile has each target that the table or the night names.
func TestTargets(t *testing.T) {
	makefile := string(must.Get(os.ReadFile(filepath.Join(top, "Makefile")))(t))
	var targets []string
	for _, r := range must.Get(readTable())(t) {
		if r.ring == "targets" {
			targets = append(targets, r.name)
		}
	}

	for _, ring := range nightRings() {
		if ring.command[0] == "make" {
			targets = append(targets, ring.command[2])
		}
	}

	for _, name := range targets {
		check.That(t, regexp.MustCompile(`(?m)^`+name+`:`).MatchString(makefile), "the Makefile has no target %s", name)
	}
}

// TestChoose: the smoke always runs, what the budget leaves out is named, and comes in another turn.
func TestChoose(t *testing.T) {
	rows := []row{
		{ring: "lab", name: "Smoke", seconds: 1, smoke: true, paths: []string{"cmd"}},
		{ring: "lab", name: "Apt", seconds: 500, paths: []string{"internal/packages/apt"}},
		{ring: "lab", name: "Bake", seconds: 500, paths: []string{"cmd/gpuadm/bake*", "internal/packages"}},
		{ring: "lab", name: "MIG", seconds: 500, paths: []string{"mig"}},
		{ring: "kube", name: "Kube", seconds: 1, paths: []string{"internal"}},
	}
	files := []string{"internal/packages/apt/apt.go", "migrate.md"}

	first := choose(rows, "lab", files, 0)
	check.List(t, first.smoke, []string{"Smoke"}, "the smoke is")
	check.List(t, first.shown, []string{"Apt"}, "the first turn shows")
	check.List(t, first.left, []string{"Bake"}, "the first turn leaves")

	second := choose(rows, "lab", files, 1)
	check.List(t, second.shown, []string{"Bake"}, "the second turn shows")

	nothing := choose(rows, "lab", []string{"README.md"}, 0)
	check.List(t, slices.Concat(nothing.shown, nothing.left), nil, "a page asks for")
}

// TestAffected: a change reaches the packages that import it, in tests too.
func TestAffected(t *testing.T) {
	packages := []goPackage{
		{ImportPath: module + "/a"},
		{ImportPath: module + "/b", Imports: []string{module + "/a"}},
		{ImportPath: module + "/c", XTestImports: []string{module + "/b"}},
		{ImportPath: module + "/d"},
	}
	check.List(t, affected(packages, []string{"a/testdata/x/y.txt"}, true), []string{"./a", "./b", "./c"}, "in the end it reaches")
	check.List(t, affected(packages, []string{"a/a.go"}, false), []string{"./a", "./b"}, "at once it reaches")
	check.List(t, affected(packages, []string{"docs/x.md"}, true), nil, "a page reaches")
	check.Equal(t, len(affected(packages, []string{"go.mod"}, false)), 4, "go.mod reaches")
}
