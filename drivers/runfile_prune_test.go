// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/must"
)

// An installer is kept as long as a change that can be undone names its version.
func TestPruneRunfiles(t *testing.T) {
	n := drivertest.Node(t, "-- var/lib/gpuadm/runfiles/570.1-aa.run --\n-- var/lib/gpuadm/runfiles/580.1-bb.run --\n-- var/lib/gpuadm/runfiles/590.1-cc.run --\n-- var/lib/gpuadm/runfiles/580.11-dd.run --\n-- var/lib/gpuadm/runfiles/readme --\n")
	needed := []converge.Change{
		{Ref: converge.Ref{Kind: "runfile"}, Before: "570.1 open", After: "580.1 open, its library is gone"},
		{Ref: converge.Ref{Kind: "runfile"}, After: "570.1 open"},
		{Ref: converge.Ref{Kind: "package", Name: "libnvidia-compute"}, Before: "590.1"}, // of another kind
	}
	must.OK(t, PruneRunfiles(context.Background(), n, needed))
	names, _ := n.ReadDir(Runfiles)
	check.That(t, slices.Equal(names, []string{"570.1-aa.run", "580.1-bb.run", "readme"}), "kept are %v", names)
}
