// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestReadFile: what is named in place of a file ends in an error that says what it is, and nothing
// waits for ever.
func TestReadFile(t *testing.T) {
	at := func(name string) string { return filepath.Join(t.TempDir(), name) }
	fifo := at("fifo")
	must.OK(t, syscall.Mkfifo(fifo, 0o600))
	socket := at("s")
	listener := must.Get(net.Listen("unix", socket))(t)
	defer listener.Close()
	large := at("large")
	must.OK(t, os.WriteFile(large, nil, 0o600))
	must.OK(t, os.Truncate(large, 3<<30))

	for name, says := range map[string]string{
		fifo:             "it is a FIFO, and no process has written to it",
		socket:           "it is a socket",
		large:            "it has more than 64 MiB",
		"/dev/zero":      "it has more than 64 MiB",
		t.TempDir():      "it is a folder",
		at("missing"):    "no such file or directory",
		"":               "a file without a name",
		"~/node.toml":    "only a shell knows ~",
		"https://a/b":    "asks no web server",
		"/dev/null/file": "not a directory",
	} {
		_, err := readFile(name)
		must.That(t, err != nil, "%s is read", name)
		check.Has(t, cannotRead(name, err).Error(), says, "%s:", name)
	}
}

// TestReadPipe: a shell's <(…) and a FIFO are read to their end, also where the program that writes
// opens the FIFO after the reader, and writes more than a pipe holds: the kernel then lets it write
// the rest once the reader has taken something out (pipe(7)).
func TestReadPipe(t *testing.T) {
	const pipeHolds = 64 << 10
	first := "format = 1\n# " + strings.Repeat("a", pipeHolds) + "\n"
	rest := "[runtime]\n"
	fifo := filepath.Join(t.TempDir(), "fifo")
	must.OK(t, syscall.Mkfifo(fifo, 0o600))
	go func() {
		w, _ := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for the reader: fifo(7)
		_, _ = w.WriteString(first)
		_, _ = w.WriteString(rest)
		_ = w.Close()
	}()
	check.Equal(t, string(must.Get(readFile(fifo))(t)), first+rest, "a FIFO:")
}

// TestStdinIsReadOnce: the second -f - would be an empty file.
func TestStdinIsReadOnce(t *testing.T) {
	err := oneStdin([]string{"-", "a", "-"})
	check.That(t, err != nil && oneStdin([]string{"-", "a"}) == nil, "%v", err)
}
