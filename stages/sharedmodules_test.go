// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"errors"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
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

// unreadable is a machine on which one name cannot be read.
type unreadable struct {
	host.Host
	name string
}

func (u unreadable) ReadFile(name string) ([]byte, error) {
	if name == u.name {
		return nil, syscall.EIO
	}
	return u.Host.ReadFile(name)
}

func (u unreadable) ReadDir(name string) ([]string, error) {
	if name == u.name {
		return nil, syscall.EIO
	}
	return u.Host.ReadDir(name)
}

// TestDescribe: what cannot be read is not described as missing. Modules that were built by another
// compiler, or with other settings, would be taken for the same.
func TestDescribe(t *testing.T) {
	const archive = "-- source.deb --\n-- lib/modules/6.1/build/.config --\nCONFIG_CC_VERSION_TEXT=\"gcc 12.2.0\"\n" +
		"-- lib/modules/6.1/build/Module.symvers --\n-- etc/dkms/framework.conf --\n" +
		"-- sim.toml --\n[[command]]\nargv = [\"dkms\", \"--version\"]\nstdout = \"dkms-3.0.10\"\n"
	n := must.Get(simhost.New([]byte(archive)))(t)
	for name, want := range map[string]error{
		"":                               nil,
		"/lib/modules/6.1/build/.config": syscall.EIO,
		"/etc/dkms":                      syscall.EIO,
		"/etc/dkms/framework.conf":       syscall.EIO,
		"/etc/dkms/framework.conf.d":     syscall.EIO,
	} {
		modules := packages.SharedModules{Kernel: "6.1"}
		err := Mirror{}.describe(t.Context(), unreadable{n, name}, "/source.deb", &modules)
		check.That(t, errors.Is(err, want), "%s: %v", name, err)
	}
}
