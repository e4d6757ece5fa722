// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// argvOf takes the words out of a line of strace -v: execve("/usr/bin/apt-get", ["apt-get", "-y"], […
var (
	argvOf = regexp.MustCompile(`execve\("([^"]*)", \[(.*?)\], \[`)
	quoted = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
)

// transactions are the command lines in a log of strace -f -v -e trace=execve that change packages: of apt-get and dnf,
// not those that simulate, ask, or fetch.
func transactions(log string) [][]string {
	var list [][]string
	for line := range strings.Lines(log) {
		m := argvOf.FindStringSubmatch(line)
		if m == nil || strings.Contains(line, "ENOENT") {
			continue
		}
		var argv []string
		for _, word := range quoted.FindAllStringSubmatch(m[2], -1) {
			argv = append(argv, word[1])
		}
		has := func(words ...string) bool {
			return slices.ContainsFunc(argv, func(word string) bool { return slices.Contains(words, word) })
		}
		switch filepath.Base(m[1]) {
		case "apt-get":
			if !has("install", "remove", "purge", "dist-upgrade") || has("-s", "--simulate", "--dry-run", "-d", "--download-only", "--print-uris") {
				continue
			}
		case "dnf", "dnf-3", "yum":
			if !has("install", "remove", "upgrade", "downgrade", "swap", "distro-sync", "shell", "do", "replay") || has("--assumeno", "--downloadonly", "repoquery", "mark") {
				continue
			}
		default:
			continue
		}
		list = append(list, argv)
	}
	return list
}

// TestTransactions: what counts as one.
func TestTransactions(t *testing.T) {
	got := transactions(`1 execve("/usr/bin/apt-get", ["apt-get", "-s", "install", "a=1"], ["PATH=/usr/bin"]) = 0
1 execve("/usr/bin/apt-get", ["apt-get", "-y", "install", "a=1"], ["PATH=/usr/bin"]) = 0
1 execve("/usr/local/bin/apt-get", ["apt-get", "-y", "install", "a=1"], ["PATH=/usr/bin"]) = -1 ENOENT (No such file or directory)
2 execve("/usr/bin/apt-get", ["apt-get", "update"], ["PATH=/usr/bin"]) = 0
3 execve("/usr/bin/dnf", ["dnf", "-y", "install", "b"], ["PATH=/usr/bin"] <unfinished ...>
3 execve("/usr/bin/dnf", ["dnf", "--assumeno", "install", "b"], ["PATH=/usr/bin"]) = 0
`)
	if want := [][]string{{"apt-get", "-y", "install", "a=1"}, {"dnf", "-y", "install", "b"}}; !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}

// oneTransaction runs gpuadm apply for the stages of packages under strace, which shall exit with 0 after exactly one command
// line that changes packages.
func oneTransaction(t *testing.T, h *lab.Host, args ...string) {
	t.Helper()
	// gpg-agent, which dnf leaves running, must not keep strace, nor strace the test: so it is no child of the test's and has none of its pipes.
	const log, trace = "/run/strace.argv", `exec strace -D -f --seccomp-bpf -v -s 4096 -e trace=execve -e signal=none -o "$0" gpuadm --no-color "$@" >/run/said 2>&1`
	r := h.Exec(slices.Concat([]string{"sh", "-c", trace, log}, args)...)
	if r.Exit != 0 {
		t.Errorf("gpuadm %s: want exit 0, it is %d: %s", strings.Join(args, " "), r.Exit, h.Get("/run/said"))
	}
	if made := transactions(h.Get(log)); len(made) != 1 {
		t.Errorf("gpuadm %s: want one transaction, there are %d:", strings.Join(args, " "), len(made))
		for _, argv := range made {
			t.Errorf("\t%s", strings.Join(argv, " "))
		}
	}
}
