// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestOwners: each writer of the register has its way, whichever engine it is, and node.toml cannot
// claim a file that its writer makes again.
func TestOwners(t *testing.T) {
	type how = platform.How
	for writer, want := range map[string]struct{ auto, gpuadm, other how }{
		"":                {platform.Edits, platform.Edits, platform.Entry},
		"k3s":             {platform.Render, platform.Render, platform.Render},
		"rke2":            {platform.Render, platform.Render, platform.Render},
		"k0s":             {platform.Folder, platform.Folder, platform.Folder},
		"gke":             {platform.NoNeed, platform.NoNeed, platform.Entry},
		"cos":             {platform.NoNeed, platform.Edits, platform.Entry},
		"aks":             {platform.After, platform.Edits, platform.Entry},
		"nodeadm":         {platform.Boot, platform.Edits, platform.Entry},
		"bottlerocket":    {platform.Entry, platform.Edits, platform.Entry},
		"talos":           {platform.Entry, platform.Edits, platform.Entry},
		"another program": {platform.Entry, platform.Edits, platform.Entry},
	} {
		for claim, want := range map[string]how{"auto": want.auto, "gpuadm": want.gpuadm, "other": want.other} {
			e := facts.Engine{
				Name:   "crio",
				Owner:  writer,
				Config: "/etc/crio/crio.conf",
			}
			r := spec.Runtime{Owner: claim}
			check.Equal(t, HowOf(r, e), want, "%s, owner = %q:", writer, claim)
			refused := CheckOwner(r, e) != nil
			check.Equal(t, refused, writer == "gke" && claim == "gpuadm", "%s, owner = %q is refused:", writer, claim)
		}
	}
}

// TestAfterItsScripts: a platform that writes the file once is waited for, and the file then
// edited, whichever engine reads it.
func TestAfterItsScripts(t *testing.T) {
	e := facts.Engine{Name: "crio", Owner: "aks"}
	f := facts.Facts{}
	check.That(t, !MayEdit(spec.Runtime{}, f, e), "gpuadm does not wait for the scripts")

	done := platform.WriterOf("aks").Join.Done
	f.Files = map[string][]byte{done: {}}
	check.That(t, MayEdit(spec.Runtime{}, f, e), "gpuadm does not edit the file once %s is there", done)
}
