// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"
	"path/filepath"
	"testing"
)

// Under one moment a unit stays what it was; without one, and under the next, it is what it is now.
func TestMoment(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "etc/systemd/system")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	disk, err := openRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	s := systemd{files: NewFiles(disk)}
	now := Moment(t.Context())
	look := func(when string, want string) {
		t.Helper()
		ctx := t.Context()
		if when == "then" {
			ctx = now
		} else if when == "next" {
			ctx = Moment(ctx)
		}
		if u, _ := s.unit(ctx, "x.service"); u.Load != want {
			t.Errorf("%s: %+v, want %s", when, u, want)
		}
	}
	look("then", "not-found")
	if err := os.WriteFile(filepath.Join(folder, "x.service"), []byte("[Service]\nExecStart=/bin/true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	look("then", "not-found")
	look("", "loaded")
	look("next", "loaded")
}
