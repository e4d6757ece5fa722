// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestEditsMeanwhileAreNotLost has an editor save a file before each operation of the disk while apply, and then undo, are at work
// on it. Its text is in the file afterwards, or undo brings it back.
func TestEditsMeanwhileAreNotLost(t *testing.T) {
	for _, command := range []string{"apply", "undo"} {
		for at := 0; ; at++ {
			n := node(t)
			must.OK(t, n.WriteFile("/etc/a", []byte("old\n"), host.Attr{Mode: 0o644}))
			e := engineOf(t, stage(things.Exact("/etc/a", []byte("ours\n"), 0o644, "")))
			if command == "undo" {
				apply(t, n, e)
			}
			n.Meddle(at, func(root host.Folder) {
				dir := must.Get(root.Folder("etc"))(t)
				file, err := dir.Create("editor")
				must.OK(t, err)
				must.Get(file.Write([]byte("theirs\n")))(t)
				must.OK(t, dir.Rename("editor", "a", 0))
			})
			var err error
			if command == "apply" {
				_, err = e.Apply(t.Context(), n)
			} else {
				_, err = e.Undo(t.Context(), n, "all", nil)
			}
			if !n.Meddled() {
				break
			}
			data, _ := n.ReadFile("/etc/a")
			if strings.Contains(string(data), "theirs") {
				continue
			}
			if command == "apply" {
				_, _ = e.Undo(t.Context(), n, "all", nil)
				if back, _ := n.ReadFile("/etc/a"); strings.Contains(string(back), "theirs") {
					continue
				}
			}
			t.Errorf("%s, before operation %d: the edit is lost: %q (%v)", command, at, data, err)
		}
	}
}
