// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// An archive is an initial file system, as the kernel unpacks it at boot: cpio's "newc" form.
// Source: Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's tree.
type archive struct {
	out  *bufio.Writer
	at   int
	have map[string]bool
}

func newArchive(w io.Writer) *archive {
	return &archive{out: bufio.NewWriterSize(w, 1<<20), have: map[string]bool{".": true}}
}

// entry writes a file, a folder or a link. mode is the kernel's st_mode; of a link, data is where it leads. All belong to root.
func (a *archive) entry(name string, mode uint32, data []byte) error {
	a.have[name] = true
	inode := len(a.have)
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad()
	_, err := a.Write(data)
	a.pad()
	return err
}

// Write keeps the first error: bufio.Writer returns it from then on.
func (a *archive) Write(p []byte) (int, error) {
	a.at += len(p)
	return a.out.Write(p)
}

func (a *archive) pad() { _, _ = a.Write(make([]byte, -a.at&3)) }

// close ends the archive and tells the first error there was.
func (a *archive) close() error {
	_ = a.entry("TRAILER!!!", 0, nil)
	return a.out.Flush()
}

// take adds what lies at a name below root, and all on the way to it: folders, links, and where links lead.
func (a *archive) take(root, name string) error {
	parts := strings.Split(strings.Trim(filepath.Clean("/"+name), "/"), "/")
	at := ""
	for hops := 0; len(parts) > 0; parts = parts[1:] {
		place := filepath.Join(at, parts[0])
		info, err := os.Lstat(filepath.Join(root, place))
		if err != nil {
			return fmt.Errorf("cannot take %s along: %w", name, err)
		}
		mode := info.Sys().(*syscall.Stat_t).Mode
		if info.Mode()&os.ModeSymlink == 0 {
			at = place
			if err := a.copyOne(root, at, mode); err != nil {
				return err
			}
			continue
		}
		to, err := os.Readlink(filepath.Join(root, place))
		if hops++; err != nil || hops > 40 {
			return fmt.Errorf("cannot follow the link %s: %d links, %w", place, hops, err)
		}
		if !a.have[place] {
			if err := a.entry(place, mode, []byte(to)); err != nil {
				return err
			}
		}
		full := filepath.Join("/", at, to)
		if filepath.IsAbs(to) {
			full = filepath.Clean(to)
		}
		// From the root again; the first is dropped by the loop.
		parts, at = append([]string{""}, append(strings.Split(strings.Trim(full, "/"), "/"), parts[1:]...)...), ""
	}
	return nil
}

func (a *archive) copyOne(root, name string, mode uint32) error {
	if a.have[name] {
		return nil
	}
	var data []byte
	if mode&syscall.S_IFMT == syscall.S_IFREG {
		var err error
		if data, err = os.ReadFile(filepath.Join(root, name)); err != nil {
			return fmt.Errorf("cannot take %s along: %w", name, err)
		}
	}
	return a.entry(name, mode, data)
}

// TestArchive: links are followed and kept, nothing is taken twice, and every header lies at a multiple of four.
func TestArchive(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{"usr/lib/a/real.so.1": "12345", "usr/lib/b": "x"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"lib": "usr/lib", "usr/lib/a/so": "real.so.1", "top": "/lib/a/../a/so", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	a := newArchive(&out)
	for _, name := range []string{"/top", "lib/b", "/top"} {
		if err := a.take(root, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"/loop", "/none"} {
		if err := a.take(root, name); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if err := a.close(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for rest := out.Bytes(); len(rest) > 0; {
		var size, nameSize int
		if _, err := fmt.Sscanf(string(rest[54:62])+" "+string(rest[94:102]), "%x %x", &size, &nameSize); err != nil || string(rest[:6]) != "070701" {
			t.Fatalf("not a header: %q: %v", rest[:110], err)
		}
		name := string(rest[110 : 110+nameSize-1])
		rest = rest[(110+nameSize+3)&^3:]
		names = append(names, name+"="+string(rest[:size]))
		rest = rest[(size+3)&^3:]
	}
	want := "top=/lib/a/../a/so lib=usr/lib usr= usr/lib= usr/lib/a= usr/lib/a/so=real.so.1 usr/lib/a/real.so.1=12345 usr/lib/b=x loop=loop TRAILER!!!="
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
