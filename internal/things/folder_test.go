// SPDX-License-Identifier: Apache-2.0

package things_test

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestFolderOfALink: no folder can be made where a link to a missing folder is. The plan says so,
// and no apply begins; a link to a folder is that folder.
func TestFolderOfALink(t *testing.T) {
	for name, c := range map[string]struct {
		archive string
		found   converge.State
		refused bool
	}{
		"not there":         {"-- etc/ --\n", "", false},
		"a folder":          {"-- etc/containerd/ --\n", "0755 0:0", false},
		"a link to one":     {"-- opt/c/ --\n-- etc/containerd link=/opt/c --\n", "0755 0:0", false},
		"a link to nothing": {"-- etc/containerd link=/opt/c --\n", "link to /opt/c", true},
	} {
		n := must.Get(simhost.New([]byte(c.archive)))(t)
		wants := things.Folders("/etc/containerd", "holds the configuration")
		want := wants[len(wants)-1]
		found := must.Get(want.Look(t.Context(), n))(t)
		check.Equal(t, found, c.found, "%s:", name)

		_, err := want.To(found)
		check.That(t, (err != nil) == c.refused, "%s: %v", name, err)
		if err != nil {
			check.Says(t, err.Error(), "a link to /opt/c, which is not there")
		}
	}
}
