// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
)

// TestUndoOfABakedImage: an undo of a bake runs the image's own programs, as the bake did: packages
// go by its dpkg.
func TestUndoOfABakedImage(t *testing.T) {
	b, ok := newBakery(t, string(demoNode))
	must.That(t, ok, "the demo's machine cannot be an image")
	b.open = b.image.Folder
	ubuntu.Install(b.image)
	packages := func() string {
		return string(must.Get(b.image.ReadFile(facts.DpkgStatus))(t))
	}

	made, _ := b.bake()
	must.That(t, len(made) > 10 && strings.Contains(packages(), "nvidia-container-toolkit"), "the bake made %v", made)

	code, said := b.run("undo", "--to", "all")
	check.That(t, code == 0, "undo ends with %d: %v", code, said)
	check.That(t, !strings.Contains(packages(), "nvidia-container-toolkit"), "the packages stay:\n%s", packages())
}
