// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// lossyUpgrade is a machine, and an engine whose apply fails after an upgrade whose script removes
// the modules of a kernel, as an upgrade of the driver does. rebuilds says whether the roll-back of
// the upgrade builds them again.
func lossyUpgrade(t *testing.T, rebuilds bool) (n *simhost.Node, e *converge.Engine) {
	t.Helper()
	const kept = "/lib/modules/6.1.0-1/modules.dep"
	n = node(t)
	for _, folder := range []string{"/lib", "/lib/modules", "/lib/modules/6.1.0-1"} {
		err := n.Mkdir(folder, host.Attr{Mode: 0o755})
		must.That(t, err == nil || errors.Is(err, fs.ErrExist), "%v", err)
	}

	put(t, n, kept, "nvidia.ko:")

	upgrade := gadget{name: "/srv/driver", make: func(h host.Host, to converge.State) error {
		if to == "new" {
			return h.Remove(kept)
		}
		if rebuilds {
			return h.WriteFile(kept, []byte("nvidia.ko:"), host.Attr{Mode: 0o644})
		}
		return nil
	}}
	refuse := func(host.Host, converge.State) error { return errors.New("no") }
	fails := gadget{name: "/srv/fails", make: refuse}
	put(t, n, "/srv/driver", "old")

	wants := []converge.Want{{Thing: upgrade, To: to("new")}, {Thing: fails, To: to("on")}}
	st := named("driver", wants...)
	st.Restores = func(f facts.Facts) map[string]string {
		all := map[string]string{}
		for _, kernel := range f.Kernel.Installed {
			all["kernel "+kernel] = "module nvidia"
		}
		return all
	}

	return n, gadgets(t, []gadget{upgrade, fails}, st)
}

// lostModules is how a roll-back names what it has not restored.
const lostModules = "this is not as before the run: kernel 6.1.0-1: module nvidia before, none now"

// Law 12: a roll-back looks too, and names what it cannot build again.
func TestRollBackNamesWhatIsNotAsBefore(t *testing.T) {
	for _, rebuilds := range []bool{true, false} {
		n, e := lossyUpgrade(t, rebuilds)
		_, err := e.Apply(t.Context(), n)
		told := strings.Join(because(err), "\n")
		isTold := strings.Contains(told, lostModules)
		check.That(t, err != nil && isTold != rebuilds, "rebuilds %t: %v\n%s", rebuilds, err, told)
	}
}

// So does the roll-back of an apply that supersedes an undo which was cut short.
func TestRollBackOfASupersedingApply(t *testing.T) {
	n, e := lossyUpgrade(t, false)
	other := engineOf(t, named("other", things.Exact("/srv/other", []byte("x"), 0o644, "")))
	apply(t, n, other)
	stop := make(chan struct{})
	close(stop)
	other.Stop = stop
	_, err := other.Undo(t.Context(), n, "", nil)
	must.That(t, errors.Is(err, converge.ErrStopped), "an undo that was stopped: %v", err)

	_, err = e.Apply(t.Context(), n)
	must.That(t, err != nil, "an apply that cannot make all succeeded")
	check.Says(t, strings.Join(because(err), "\n"), lostModules)
}
