// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

// TestAKSWaits waits for AKS's own scripts.
func TestAKSWaits(t *testing.T) {
	n := joins.Recorded(t, "aks-ubuntu2204", nil)
	must.OK(t, n.Remove(platform.Of("aks").Join.Done))
	w := scriptsEnded(platform.Of("aks"), false)
	_, err := w.Look(t.Context(), n.View())
	check.That(t, trouble.Passes(err), "%v", err)
}

// TestAKSBoots does not wait for scripts that wait for us: they start kubelet, which waits for
// gpuadm.service.
func TestAKSBoots(t *testing.T) {
	n := joins.Recorded(t, "aks-ubuntu2204", nil)
	must.OK(t, n.Remove(platform.Of("aks").Join.Done))
	s := specs.Of(t, "[join]\nmethod = \"aks\"\n")
	f := must.Get(facts.Gather(t.Context(), n, node.StartupNeeds().And(facts.Needs{Files: method.Files(s)})))(t)
	f.Booting = true
	wants, err := leftTo("aks", f)
	must.That(t, err == nil && len(wants) == 1, "%v: %v", wants, err)
	var later host.Later
	_, err = wants[0].Look(t.Context(), n.View())
	check.That(t, errors.As(err, &later), "%v", err)
}

// TestAKSBeginsAtBoot: at a boot AKS's scripts wait for kubelet, so nothing waits for them; a
// driver is refused until they have ended.
func TestAKSBeginsAtBoot(t *testing.T) {
	n := joins.Recorded(t, "aks-ubuntu2204", nil)
	for _, c := range []struct {
		spec          string
		booting, gone bool
		want          func(error) bool
	}{
		{"[runtime]\n", true, true, func(err error) bool { return errors.As(err, new(host.Later)) }},
		{"[driver]\nversion = \"580\"\n", true, true, func(err error) bool {
			return err != nil && !trouble.Passes(err) && strings.Contains(err.Error(), "which waits for gpuadm")
		}},
		{"[driver]\nversion = \"580\"\n", false, true, trouble.Passes},
		{"[driver]\nversion = \"580\"\n", true, false, func(err error) bool { return err == nil }},
	} {
		n := n
		if c.gone {
			n = joins.Recorded(t, "aks-ubuntu2204", nil)
			must.OK(t, n.Remove(platform.Of("aks").Join.Done))
		}
		wants := scriptChecks(specs.Of(t, c.spec), facts.Facts{
			Booting: c.booting,
			Cloud:   instance.Cloud{Managed: "aks"},
		})
		_, err := wants[0].Look(t.Context(), n.View())
		check.That(t, len(wants) == 1 && c.want(err), "%+v: %v", c, err)
	}
}
