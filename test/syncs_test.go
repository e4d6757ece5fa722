// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/things"
)

// TestSyncsOfAFirstEdit: most of the time of an edit goes to waiting for the disk. The first edit on a machine waits for the names of
// gpuadm's folder, of the folder of blobs in it and of the journal; every edit for two blobs, their names, the journal's line, the new
// file, its name, and the journal's end.
func TestSyncsOfAFirstEdit(t *testing.T) {
	n := node(t)
	put(t, n, "/srv/a", "zero\n")
	for _, edit := range []struct {
		what, text string
		most       int
	}{{"the first", "one\n", 10}, {"another", "two\n", 6}} {
		before := n.Syncs()
		apply(t, n, engineOf(t, stage(things.Exact("/srv/a", []byte(edit.text), 0o644, ""))))
		if syncs := n.Syncs() - before; syncs > edit.most || syncs < 5 {
			t.Errorf("%s edit waits for the disk %d times, not at most %d", edit.what, syncs, edit.most)
		}
	}
}
