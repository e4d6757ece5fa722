// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Kinds of NVLink fabric. The column fabric of catalog/gpus.toml names the GPUs with NVLink 5.
const (
	FabricSwitch  = "nvswitch" // NVSwitches on the PCI bus, up to Hopper
	FabricNVLink5 = "nvlink5"  // Blackwell's switches on the board, managed over InfiniBand functions: HGX B200, B300
	FabricRack    = "rack"     // switch trays of the rack, which have a fabric manager of their own: GB200, GB300
)

// FabricOf returns the kind of the GPUs' NVLink fabric, "" if the machine has none to manage.
func FabricOf(c Catalog, f facts.Facts) string {
	kind := ""
	for _, p := range f.GPUs {
		switch {
		case p.Vendor != "10de":
		case strings.HasPrefix(p.Class, "0680"): // "bridge, other"
			return FabricSwitch
		case p.Display():
			if row := c.gpu(strings.ToLower(p.Device)); row != nil && (row.Fabric == FabricNVLink5 || row.Fabric == FabricRack) {
				kind = row.Fabric
			}
		}
	}
	return kind
}

// join adds to a choice the package of the kernel's InfiniBand modules, where the GPUs' fabric
// needs it.
func (c *Choice) join(catalog Catalog, s spec.Driver, f facts.Facts) {
	if c.Fabric = FabricOf(catalog, f); c.Source == SourceNone || !managed(c.Fabric, s) {
		return
	}
	for _, kernel := range f.Kernel.Targets(f.Live) {
		if name := modulesExtra(f, kernel); name != "" {
			c.Members = append(c.Members, Member{Name: name, Role: "kernel-modules", PerKernel: kernel})
		}
	}
}

// managed says whether this machine's fabric manager is to manage NVLink 5's switches.
func managed(fabric string, s spec.Driver) bool {
	return fabric == FabricNVLink5 && s.FabricManager != "off"
}

// modulesExtra names the package with a kernel's InfiniBand modules, "" if no package has to be
// installed. Before 26.04 Ubuntu has them in linux-modules or in linux-modules-extra, depending on
// the kernel; so gpuadm wants the latter where the kernel lacks one of them, or where it is
// installed already. Since 26.04 all are in linux-modules.
// Sources: https://github.com/NVIDIA/gpu-operator/issues/2781;
// Azure/AgentBaker:parts/linux/cloud-init/artifacts/ubuntu/cse_install_ubuntu.sh.
func modulesExtra(f facts.Facts, kernel string) string {
	if f.OS.ID != "ubuntu" || hardware.Compare(f.OS.Version, "26.04") >= 0 || f.Modules == nil {
		return ""
	}
	k, known := f.Modules.Of(kernel)
	if !known || !k.Extra && len(k.Infiniband) == len(facts.InfinibandModules()) {
		return ""
	}
	return "linux-modules-extra-" + kernel
}

// fabricSide adds the modules that the GPUs' fabric needs.
func (c Choice) fabricSide(s spec.Driver, f facts.Facts, k *modules.KernelSide) {
	if managed(c.Fabric, s) {
		k.Companions = append(k.Companions, facts.InfinibandModules()...)
		for _, m := range c.Members {
			if strings.HasPrefix(m.Name, "linux-modules-extra-") {
				k.Extra = append(k.Extra, m.Name)
			}
		}
	}
	if _, set := s.Parameters[imexChannel]; c.Fabric == FabricRack && s.IMEX == "host" && !set {
		k.Parameters[imexChannel] = "1"
	}
}

// switchReady checks what NVLink 5's fabric manager needs beside the driver: the switches'
// management function, an InfiniBand device with SW_MNG in its product data, and the module ib_umad
// to talk to it. The stage before loads the modules.
// Sources: https://github.com/NVIDIA/gpu-operator/issues/2781;
// NVIDIA/gpu-driver-container:ubuntu24.04/nvidia-driver.
func switchReady() converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		if !v.Live() {
			return "", nil
		}
		if _, err := v.Stat("/sys/class/infiniband_mad"); err != nil {
			return "", host.Later{Until: "once the module ib_umad is loaded"}
		}
		const devices = "/sys/class/infiniband"
		names, err := v.ReadDir(devices)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		manages := func(name string) bool {
			vpd := make([]byte, 4096)
			n, _ := v.ReadAt(path.Join(devices, name, "device/vpd"), vpd, 0) // many devices have none
			return strings.Contains(string(vpd[:n]), "SW_MNG")
		}
		switch {
		case len(names) == 0:
			return "cannot join the GPUs over NVLink: there is no InfiniBand device, so nothing manages the switches", nil
		case !slices.ContainsFunc(names, manages):
			return "cannot join the GPUs over NVLink: no InfiniBand device manages the switches (none says SW_MNG)", nil
		}
		return "", nil
	}
	return things.Check("NVLink switches can be managed", look, "the fabric manager reaches the switches over InfiniBand",
		"journalctl -k --grep mlx5, which says why the module mlx5_ib serves no device",
		"in a virtual machine: have the host pass the switches' network functions through to it",
		`fabricmanager = "off" in [driver], if another system manages the switches`)
}

// daemonFits refuses a daemon of another version than the module: it would not serve that module.
// It asks the program and not the package database, since a package of one branch may have the
// program of another. It passes a daemon that runs, since the module has accepted it, and a unit
// that is not installed.
func daemonFits(unit, program, about, pkg, version string) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		u, err := v.Unit(ctx, unit)
		if errors.As(err, new(host.Later)) {
			return "", nil
		}
		if loaded, _ := facts.LoadedDriver(v); err != nil || u.Load == "not-found" || u.Active == "active" || loaded != version {
			return "", err // until the driver is there both may be of another version
		}
		out, err := v.Ask(ctx, program, "--version")
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		} else if err != nil {
			return "", err
		}
		if is := spokenVersion().FindString(string(out)); is != "" && is != version {
			return fmt.Sprintf("cannot start %s: its version is %s and the module's is %s, and it serves a module of its own version only", about, is, version), nil
		}
		return "", nil
	}
	return things.Check(about+" is of the module's version", look, about+" serves a module of its own version only",
		fmt.Sprintf("install the package %s of version %s", cmp.Or(pkg, "that brings "+program), version))
}

var spokenVersion = pattern.Of(`[0-9]{3}\.[0-9]+(\.[0-9]+)?`)

// packageOf returns the choice's package with a role, "" if it has none.
func (c Choice) packageOf(role string) string {
	i := slices.IndexFunc(c.Members, func(m Member) bool { return m.Role == role })
	if i < 0 {
		return ""
	}
	return c.Members[i].Name
}
