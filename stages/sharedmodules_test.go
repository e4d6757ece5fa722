// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/kmodule"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestVerifyBuilt: of NVIDIA's packages and of Debian's, which give DKMS another name for the
// module's file (DEST_MODULE_NAME), the module nvidia is found.
func TestVerifyBuilt(t *testing.T) {
	const kernel = "6.1.0-28-amd64"
	signed := kmodule.Signed(
		kmodule.Nvidia("535.261.03", "Dual MIT/GPL", kernel),
		kmodule.Signature(t, "debian12-kernel-6.1"))
	for _, name := range []string{"nvidia.ko", "nvidia-current-open.ko"} {
		n := must.Get(simhost.New([]byte(drivertest.File("built/"+name, signed))))(t)
		module := must.Get(modinfo.Read(n, "/built/"+name))(t)
		m := Mirror{Shared: Shared{Signer: *module.Signer}}
		modules := packages.SharedModules{
			Kernel:  kernel,
			Version: "535.261.03",
			Flavour: "open",
		}
		err := m.verifyBuilt(n, &modules, []string{module.Path})
		check.That(t, err == nil && modules.Vermagic == module.Vermagic, "%s: %q, %v", name, modules.Vermagic, err)
	}
}
