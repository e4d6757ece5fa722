// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Repositories are the records that the tables are made of: the folder's name, and where it comes
// from.
var repositories = map[string]string{
	"open-gpu-kernel-modules": "https://github.com/NVIDIA/open-gpu-kernel-modules",
	"nvidia-open-driver-G06":  "https://github.com/openSUSE/nvidia-open-driver-G06",
	"amazon-eks-ami":          "https://github.com/awslabs/amazon-eks-ami",
	"nvidia-graphics-drivers": "https://github.com/GXDE-OS/nvidia-graphics-drivers",
	"product-security":        "https://github.com/NVIDIA/product-security",
	"nvidia-all":              "https://github.com/Frogging-Family/nvidia-all",
}

// Records reads files of one record, at any of its commits.
type records interface {
	// Tags are the names of the releases.
	tags() ([]string, error)
	// Changes lists the commits that changed a file, newest first.
	changes(path string) ([]string, error)
	// Files are the paths below a folder, at a commit or tag.
	files(commit, folder string) ([]string, error)
	// Read returns a file's content.
	read(commit, path string) ([]byte, error)
	// Month is when a commit was made: 2026-03.
	month(commit string) (string, error)
	// Words says which of the words the files below a folder have.
	words(commit, folder string, words []string) (map[string]bool, error)
}

// repository is a Git repository on disk, with or without a work tree.
type repository string

// open finds a record in the folder of records.
func open(folder, name string) (repository, error) {
	at := filepath.Join(folder, name)
	for _, path := range []string{filepath.Join(at, ".git"), at} {
		if _, err := os.Stat(filepath.Join(path, "HEAD")); err == nil {
			return repository(path), nil
		}
	}

	return "", fmt.Errorf("cannot read %s: it is not a Git repository; git clone --bare %s %s makes it",
		at, repositories[name], at)
}

func (r repository) git(arguments ...string) ([]byte, error) {
	cmd := exec.Command("git", append([]string{"--git-dir", string(r)}, arguments...)...)
	var wrong bytes.Buffer
	cmd.Stderr = &wrong
	out, err := cmd.Output()
	if err != nil {
		command := strings.Join(arguments, " ")
		return nil, fmt.Errorf("cannot run git %s on %s: %w: %s", command, r, err, wrong.String())
	}
	return out, nil
}

func (r repository) lines(arguments ...string) ([]string, error) {
	out, err := r.git(arguments...)
	return strings.Fields(string(out)), err
}

func (r repository) tags() ([]string, error) { return r.lines("tag") }

func (r repository) changes(path string) ([]string, error) {
	return r.lines("log", "--all", "--format=%H", "--", path)
}

func (r repository) files(commit, folder string) ([]string, error) {
	return r.lines("ls-tree", "-r", "--name-only", commit, "--", folder)
}

func (r repository) read(commit, path string) ([]byte, error) {
	return r.git("show", commit+":"+path)
}

func (r repository) month(commit string) (string, error) {
	out, err := r.git("log", "-1", "--format=%cd", "--date=format:%Y-%m", commit)
	return strings.TrimSpace(string(out)), err
}

func (r repository) words(commit, folder string, words []string) (map[string]bool, error) {
	arguments := []string{"grep", "--only-matching", "-h", "--fixed-strings"}
	for _, word := range words {
		arguments = append(arguments, "-e", word)
	}
	arguments = append(arguments, commit, "--", folder)

	out, err := r.git(arguments...)
	if err != nil && !strings.Contains(err.Error(), "exit status 1:") { // 1: no match
		return nil, err
	}
	has := map[string]bool{}
	for _, line := range strings.Fields(string(out)) {
		has[line] = true
	}
	return has, nil
}

// numbers takes a version apart: 535, 216, 3.
func numbers(version string) (all []int) {
	for _, part := range strings.Split(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil
		}
		all = append(all, n)
	}
	return all
}

func compare(a, b string) int { return slices.Compare(numbers(a), numbers(b)) }

func branchOf(version string) string {
	branch, _, _ := strings.Cut(version, ".")
	return branch
}

// isRelease says whether a version is a driver's release. NVIDIA tags its Vulkan developers'
// versions alike, which no repository has: 525.47, 535.43 after 02, 550.40 after 07, and others.
func isRelease(version string) bool {
	n := numbers(version)
	if len(n) < 2 || n[0] < 100 {
		return false
	}
	switch fmt.Sprint(n[0], ".", n[1]) {
	case "515.49", "525.47", "570.123", "580.94":
		return false
	case "535.43":
		return len(n) == 3 && n[2] == 2
	case "550.40":
		return len(n) == 3 && n[2] == 7
	}

	return n[0] != 455 || n[1] != 46
}
