// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Kinds of NVLink fabric. The column fabric of internal/gputable/gpus.tsv names the GPUs
// with NVLink 5.
const (
	// FabricSwitch is NVSwitches on the PCI bus, up to Hopper.
	FabricSwitch = "nvswitch"
	// FabricNVLink5 is Blackwell's switches on the board, which are managed over InfiniBand
	// functions: HGX B200, B300.
	FabricNVLink5 = "nvlink5"
	// FabricRack is the switch trays of a rack, which have a fabric manager of their own: GB200,
	// GB300.
	FabricRack = "rack"
)

// FabricOf returns the kind of the GPUs' NVLink fabric, "" if the machine has none to manage.
func FabricOf(c Catalog, f facts.Facts) string {
	kind := ""
	for _, device := range f.GPUs {
		if device.Vendor != "10de" {
			continue
		}
		if strings.HasPrefix(device.Class, "0680") { // "bridge, other"
			return FabricSwitch
		}
		if !device.Display() {
			continue
		}

		row := c.gpu(strings.ToLower(device.Device))
		if row != nil && (row.Fabric == FabricNVLink5 || row.Fabric == FabricRack) {
			kind = row.Fabric
		}
	}

	return kind
}

// managesNVLink5 says whether this machine's fabric manager is to manage NVLink 5's switches.
func managesNVLink5(fabric string, s spec.Driver) bool {
	return fabric == FabricNVLink5 && s.FabricManager != "off"
}

// addFabric adds the GPUs' fabric to a choice, and the packages of the kernels' InfiniBand modules
// where the fabric needs them.
func (c *Choice) addFabric(catalog Catalog, s spec.Driver, f facts.Facts) {
	c.Fabric = FabricOf(catalog, f)
	if c.Source == SourceNone || !managesNVLink5(c.Fabric, s) {
		return
	}

	for _, kernel := range f.Kernel.Targets(f.Live) {
		if name := infinibandPackage(f, kernel); name != "" {
			c.Members = append(c.Members, Member{
				Name:      name,
				Role:      "kernel-modules",
				PerKernel: kernel,
			})
		}
	}
}

// infinibandPackage names the package with a kernel's InfiniBand modules, "" if no package has to
// be installed. Before 26.04 Ubuntu has them in linux-modules or in linux-modules-extra, depending
// on the kernel; so gpuadm wants the latter where the kernel lacks one of them, or where it is
// installed already. Since 26.04 all are in linux-modules.
// Sources: https://github.com/NVIDIA/gpu-operator/issues/2781;
// Azure/AgentBaker:parts/linux/cloud-init/artifacts/ubuntu/cse_install_ubuntu.sh.
func infinibandPackage(f facts.Facts, kernel string) string {
	if f.OS.ID != "ubuntu" || hardware.Compare(f.OS.Version, "26.04") >= 0 || f.Modules == nil {
		return ""
	}

	on, known := f.Modules.Of(kernel)
	hasAll := len(on.Infiniband) == len(facts.InfinibandModules())
	if !known || hasAll && !on.Extra {
		return ""
	}
	return "linux-modules-extra-" + kernel
}

// addFabricModules adds the modules that the GPUs' fabric needs, and their parameters.
func (c Choice) addFabricModules(s spec.Driver, f facts.Facts, k *modules.KernelSide) {
	if managesNVLink5(c.Fabric, s) {
		k.Companions = append(k.Companions, facts.InfinibandModules()...)
		for _, m := range c.Members {
			if strings.HasPrefix(m.Name, "linux-modules-extra-") {
				k.Extra = append(k.Extra, m.Name)
			}
		}
	}

	_, set := s.Parameters[imexChannel]
	if c.Fabric == FabricRack && s.IMEX == "host" && !set {
		k.Parameters[imexChannel] = "1"
	}
}

// switchReady checks what NVLink 5's fabric manager needs besides the driver: the switches'
// management function, an InfiniBand device with SW_MNG in its product data, and the module ib_umad
// to talk to it. The stage before loads the modules.
// Sources: https://github.com/NVIDIA/gpu-operator/issues/2781;
// NVIDIA/gpu-driver-container:ubuntu24.04/nvidia-driver.
func switchReady() converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		if !v.Live() {
			return "", nil
		}

		_, err := v.Stat("/sys/class/infiniband_mad")
		if errors.Is(err, fs.ErrNotExist) {
			return "", host.Later{Until: "once the module ib_umad is loaded"}
		}
		if err != nil {
			return "", err
		}

		names, err := v.ReadDir(infinibandDevices)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if len(names) == 0 {
			return "cannot join the GPUs over NVLink: there is no InfiniBand device, so nothing manages the switches", nil
		}
		for _, name := range names {
			if managesSwitches(v, name) {
				return "", nil
			}
		}

		return "cannot join the GPUs over NVLink: no InfiniBand device manages the switches (none says SW_MNG)", nil
	}

	const why = "the fabric manager reaches the switches over InfiniBand"
	return things.Check("NVLink switches can be managed", look, why,
		"journalctl -k --grep mlx5, which says why the module mlx5_ib serves no device",
		"in a virtual machine: have the host pass the switches' network functions through to it",
		`fabricmanager = "off" in [driver], if another system manages the switches`)
}

const infinibandDevices = "/sys/class/infiniband"

// managesSwitches says whether an InfiniBand device is the switches' management function.
func managesSwitches(v host.View, device string) bool {
	vpd := make([]byte, 4096)
	n, _ := v.ReadAt(path.Join(infinibandDevices, device, "device/vpd"), vpd, 0) // many devices have none
	return strings.Contains(string(vpd[:n]), "SW_MNG")
}
