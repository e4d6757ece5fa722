// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestForeignDependency: from NVIDIA's repository to Ubuntu's in the same version, a dependency
// that Ubuntu does not have goes. Its files are those of Ubuntu's libnvidia-cfg1-595-server, and
// neither conflicts with the other: dpkg would refuse to overwrite them. Names and versions are
// those of test/listings.
func TestForeignDependency(t *testing.T) {
	family := &Family{Names: []string{"libnvidia-*"}}
	const (
		own    = "595.71.05"
		nvidia = own + "-1ubuntu1"
		ubuntu = own + "-0ubuntu0.24.04.1"
	)
	archive := choice{own: own, site: siteOf("http://archive.example/ubuntu noble")}
	none, others := []Offer(nil), []Offer{{Version: ubuntu, From: []string{"http://archive.example/ubuntu noble"}}}

	for name, c := range map[string]struct {
		found  State
		chosen choice
		offers []Offer
		kept   bool
	}{
		"a dependency of the other source":     {State{Version: nvidia, Held: true, Auto: true}, archive, none, false},
		"a package that an operator installed": {State{Version: nvidia, Held: true}, archive, none, true},
		"several sources":                      {State{Version: nvidia, Auto: true}, choice{own: own}, none, true},
		"the source has it in another build":   {State{Version: nvidia, Auto: true}, archive, others, true},
		"the chosen source's own":              {State{Version: ubuntu, Auto: true}, archive, others, true},
	} {
		_, kept := family.stateFor(c.found, c.chosen, c.offers)
		check.Equal(t, kept, c.kept, "%s: stays is ", name)
	}
}
