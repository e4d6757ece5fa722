// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestJumpIsWalk takes every path of up to four parts through a tree with links of all kinds, at once and part by part: both
// lead to the same place, or fail alike.
func TestJumpIsWalk(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "a/b/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"f": "file", "a/f": "file", "a/b/f": "file"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"l": "a/b", "a/l": "/a", "a/b/l": "../../f", "a/b/c/l": "none", "a/b/none": "l"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	quick, slow := NewFiles(diskAt(root)), NewFiles(struct{ Disk }{diskAt(root)})
	errno := func(err error) (no syscall.Errno) {
		if err != nil && !errors.As(err, &no) {
			t.Fatal(err)
		}
		return no
	}
	jumped := 0
	var try func(name string, depth int)
	try = func(name string, depth int) {
		for _, follow := range []bool{false, true} {
			at, err := quick.walk(name, follow)
			want, wantErr := slow.walk(name, follow)
			if errno(err) != errno(wantErr) || at.name != want.name || at.path != want.path {
				t.Errorf("%s, follow %t: at once %q %q %v, part by part %q %q %v", name, follow, at.path, at.name, err, want.path, want.name, wantErr)
			}
			if at, err := quick.jump(name, follow); !errors.Is(err, errWalk) {
				jumped++
				if err == nil {
					at.dir.Close()
				}
			}
			for _, at := range []place{at, want} {
				if at.dir != nil {
					at.dir.Close()
				}
			}
		}
		if depth > 0 {
			for _, part := range []string{"a", "b", "c", "f", "l", "none", "..", "."} {
				try(strings.TrimSuffix(name, "/")+"/"+part, depth-1)
			}
		}
	}
	try("/", 4)
	if jumped < 1000 {
		t.Errorf("only %d paths were gone at once", jumped)
	}
}
