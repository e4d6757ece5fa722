// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/gpuadm/gpuadm"

// raced are the packages that start goroutines, in the product or in its tests, and the laws.
var raced = []string{
	"cmd/gpuadm", "cloud/node",
	"internal/agent", "internal/doctor", "internal/facts", "internal/host", "internal/instance",
	"internal/kube", "internal/remote",
	"test/laws", "test/sim/simhost",
}

// A change is a list of files, relative to the top of the repository.
type change struct {
	base  string // where it begins, in words
	files []string
}

// since lists what differs from the commit where the change begins, what git does not track yet
// included.
func since() (change, error) {
	base, words, err := begin()
	if err != nil {
		return change{}, err
	}
	tracked, err := git("diff", "--name-only", base)
	if err != nil {
		return change{}, err
	}
	fresh, err := git("ls-files", "--others", "--exclude-standard")
	if err != nil {
		return change{}, err
	}
	return change{
		base:  words,
		files: append(strings.Fields(tracked), strings.Fields(fresh)...),
	}, nil
}

func begin() (commit, words string, err error) {
	if base := os.Getenv("BASE"); base != "" {
		return base, "since " + base, nil
	}
	if file, err := greenFile(); err == nil {
		data, err := os.ReadFile(file)
		green := strings.TrimSpace(string(data))
		if err == nil && green != "" {
			if _, err := git("merge-base", "--is-ancestor", green, "HEAD"); err == nil {
				return green, "since " + green[:12] + ", where all rings passed", nil
			}
		}
	}

	day, err := git("rev-list", "-1", "--before=24 hours ago", "HEAD")
	if err != nil {
		return "", "", err
	}
	if day = strings.TrimSpace(day); day != "" {
		return day, "since " + day[:12] + ", a day ago", nil
	}
	const emptyTree = "4b825dc642cb6eb9a060e54bf8d69288fbee4904" // git hash-object -t tree /dev/null
	return emptyTree, "the whole tree", nil
}

// rememberGreen notes HEAD where the next run on this machine looks for its base.
func rememberGreen() error {
	file, err := greenFile()
	if err != nil {
		return err
	}
	head, err := git("rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(head), 0o644)
}

func greenFile() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "gpuadm-test", "green"), err
}

func git(args ...string) (string, error) {
	command := exec.Command("git", args...)
	out, err := command.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("cannot run git %s: %s", strings.Join(args, " "), bytes.TrimSpace(exit.Stderr))
	}
	return string(out), err
}

// A goPackage is what go list says of one.
type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func listPackages() ([]goPackage, error) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list packages: %w", err)
	}
	var all []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("cannot read what go list printed: %w", err)
		}

		all = append(all, p)
	}
}

// affected lists packages whose tests a change may turn red, as ./folder: those with a changed file,
// and those that import one, in tests too. deep follows imports to the end; otherwise the direct
// importers are enough.
func affected(packages []goPackage, files []string, deep bool) []string {
	if slices.ContainsFunc(files, concernsAll) {
		return folders(packages, func(string) bool { return true })
	}

	hit := map[string]bool{}
	for _, file := range files {
		if owner := ownerOf(packages, file); owner != "" {
			hit[owner] = true
		}
	}

	for again := true; again; again = again && deep {
		again = false
		before := hit
		hit = map[string]bool{}
		for _, p := range packages {
			imports := slices.Concat(p.Imports, p.TestImports, p.XTestImports)
			reached := before[p.ImportPath] || slices.ContainsFunc(imports, func(name string) bool {
				return before[name]
			})
			if reached {
				hit[p.ImportPath] = true
			}
			again = again || reached && !before[p.ImportPath]
		}
	}

	return folders(packages, func(path string) bool { return hit[path] })
}

// concernsAll says whether a file decides how every package is built.
func concernsAll(file string) bool {
	return slices.Contains([]string{"go.mod", "go.sum", "Makefile", ".ci/run"}, file)
}

// ownerOf is the package in whose folder a file lies, or the nearest above: testdata and embedded
// files have no package of their own.
func ownerOf(packages []goPackage, file string) string {
	for dir := filepath.Dir(file); dir != "."; dir = filepath.Dir(dir) {
		path := module + "/" + dir
		if slices.ContainsFunc(packages, func(p goPackage) bool { return p.ImportPath == path }) {
			return path
		}
	}
	return ""
}

func folders(packages []goPackage, wanted func(path string) bool) []string {
	var all []string
	for _, p := range packages {
		if wanted(p.ImportPath) {
			all = append(all, "."+strings.TrimPrefix(p.ImportPath, module))
		}
	}

	return all
}

// only keeps the folders that are in a list.
func only(found, list []string) []string {
	return slices.DeleteFunc(found, func(name string) bool {
		return !slices.Contains(list, strings.TrimPrefix(name, "./"))
	})
}
