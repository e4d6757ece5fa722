// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"testing"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/must"
)

// Packages and installers that no change needs are removed; a change keeps those of its own kind alone.
func TestPruneRemovesEveryKind(t *testing.T) {
	names := map[string]bool{ // and whether it stays
		packages.Store + "/kernel_570.1_amd64.deb": true, packages.Store + "/kernel_580.1_amd64.deb": false,
		drivers.Runfiles + "/580.1-aa.run": true, drivers.Runfiles + "/570.1-bb.run": false,
	}
	text := "-- var/lib/dpkg/status --\nPackage: other\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n"
	for name := range names {
		text += "-- " + name[1:] + " --\n"
	}
	n := machine{"kept", []byte(text)}.boot(t)
	needed := []converge.Change{{Ref: converge.Ref{Kind: "package", Name: "kernel"}, Before: "570.1"}, {Ref: converge.Ref{Kind: "runfile", Name: "kernel"}, Before: "580.1 open"}}
	must.OK(t, stages.Prune(t.Context(), n, needed))
	for name, stays := range names {
		if _, err := n.Stat(name); (err == nil) != stays {
			t.Errorf("%s: %v, want it to stay: %t", name, err, stays)
		}
	}
}
