// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"errors"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMirrorCompilers: the headers of a kernel that cannot be read end a mirror, which would lack
// the kernel's compiler. Headers of another builder name none.
func TestMirrorCompilers(t *testing.T) {
	const config = "/m/.gpuadm/headers/usr/src/linux-headers-6.1/.config"
	text := "-- " + config[1:] + " --\nCONFIG_X=y\nCONFIG_CC_VERSION_TEXT=\"gcc-12 (Debian 12.2.0-14) 12.2.0\"\n"
	n := must.Get(simhost.New([]byte(text)))(t)
	w := wanted{headers: map[string]string{"6.1": "linux-headers-6.1", "6.6-own": "linux-headers-6.6-own"}}
	g := packages.Gathering{Work: "/m/.gpuadm", Into: "/m"}

	for name, want := range map[string]error{"": nil, config: syscall.EIO} {
		found, err := Mirror{}.compilers(t.Context(), unreadable{n, name}, nil, g, w, nil)
		check.That(t, errors.Is(err, want), "%q: %v", name, err)
		if want == nil {
			check.That(t, len(found) == 1 && found[0].Kernel == "6.1" && found[0].Compiler != "", "%+v", found)
		}
	}
}
