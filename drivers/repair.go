// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
)

// Reload wants the loaded module nvidia to be the module on disk, whichever version that is, and
// the initial file system rebuilt after changes of modprobe's settings.
func Reload(f facts.Facts) []converge.Want {
	return []converge.Want{modules.Loaded(f, modules.KernelSide{}), things.Resumed()}
}

// KeepsOthersAway are the lines for modprobe.d by which NoOtherDriver does that.
const KeepsOthersAway = modules.KeepsOthersAway

// NoOtherDriver wants the kernel's own drivers kept away from the GPUs, in the initial file systems
// too, and the module nvidia in their place.
func NoOtherDriver(f facts.Facts) ([]converge.Want, error) {
	conf, err := modules.ModprobeConf(nil)
	if err != nil {
		return nil, err
	}

	wants := things.Folders("/etc/modprobe.d", "holds modprobe's settings")
	const why = "keeps nouveau and nova away from the GPUs"
	wants = append(wants, things.Exact(modules.ModprobeFile, conf, 0o644, why))
	for _, kernel := range f.Kernel.Targets(f.Live) {
		wants = append(wants, kmod.Initramfs(kernel, []string{modules.ModprobeFile},
			"the initial file system knows modprobe's settings"))
	}

	return append(wants, Reload(f)...), nil
}

// Serving wants one of the driver's daemons to run: PersistencedUnit or FabricManagerUnit.
func Serving(unit string) []converge.Want {
	wants := []converge.Want{things.Running(unit, "the driver needs it")}
	if unit == FabricManagerUnit {
		wants = append(wants, kmod.Fabric("every GPU is registered with the fabric manager"))
	}
	return wants
}
