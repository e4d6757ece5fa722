// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
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
	none, others := []Offer(nil), []Offer{{
		Version: ubuntu,
		From:    []string{"http://archive.example/ubuntu noble"},
	}}

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

// TestRivals: kernel modules of another kind go, though dnf would let them stay: NVIDIA's
// precompiled package conflicts with kmod-nvidia-latest-dkms alone (kmod-nvidia.spec of
// NVIDIA/yum-packaging-precompiled-kmod). One that the spec asks for stays.
func TestRivals(t *testing.T) {
	const own, precompiled, open = "580.178.04", "kmod-nvidia-580.178.04-5.14.0-687.54.1", "kmod-nvidia-open-dkms"
	family := &Family{
		Group:  "driver",
		Names:  []string{"*nvidia*"},
		Rivals: []string{"kmod-nvidia-[0-9]*"},
	}
	all := map[string]State{
		precompiled:          {Version: "3:580.178.04-3.el9_8"},
		open:                 {Version: "3:580.178.04-1.el9"},
		"nvidia-kmod-common": {Version: "3:580.178.04-1.el9", Auto: true},
	}
	offers := map[string][]Offer{}
	for name, is := range all {
		offers[name] = []Offer{{Version: is.Version}}
	}
	asks := func(name string) []converge.Change {
		after := all[name]
		after.Held = true
		return []converge.Change{{
			Ref:    converge.Ref{Kind: "package", Name: name},
			Before: all[name].String(),
			After:  after.String(),
		}}
	}

	for name, goes := range map[string]bool{open: true, precompiled: false} {
		changes := family.addParts(asks(name), all, offers, choice{own: own})
		i := indexOf(changes, precompiled)
		must.That(t, i >= 0, "nothing is said of %s", precompiled)
		check.Equal(t, Parse(changes[i].After).Version == removed, goes, "with %s, the precompiled modules go: ", name)
		kept := indexOf(changes, "nvidia-kmod-common")
		check.That(t, kept >= 0 && Parse(changes[kept].After).Installed(), "%+v", changes)
	}
}
