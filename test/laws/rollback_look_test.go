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
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// Law 12: a roll-back looks too. A package's script removes the modules of a kernel, as an upgrade of
// the driver does, and the roll-back of the package cannot build them again.
func TestRollBackNamesWhatIsNotAsBefore(t *testing.T) {
	const kept = "/lib/modules/6.1.0-1/modules.dep"
	for _, rebuilds := range []bool{true, false} {
		n := node(t)
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

		_, err := gadgets(t, []gadget{upgrade, fails}, st).Apply(t.Context(), n)
		told := strings.Join(because(err), "\n")
		const lost = "this is not as before the run: kernel 6.1.0-1: module nvidia before, none now"
		isTold := strings.Contains(told, lost)
		check.That(t, err != nil && isTold != rebuilds, "rebuilds %t: %v\n%s", rebuilds, err, told)
	}
}
