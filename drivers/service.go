// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Units of the driver's own daemons, the same on all distributions.
const (
	PersistencedUnit  = "nvidia-persistenced.service"
	FabricManagerUnit = "nvidia-fabricmanager.service"
)

// Services is what is wanted of the driver's daemons.
type Services struct {
	Version       string // of the module, which fabric manager must be of to the last digit
	Persistenced  bool   // keep the driver's state while no client runs
	FabricManager string // auto, on, off
}

// persistencedUnit is for a driver of NVIDIA's installer: that brings the daemon, and a unit for it only as a sample in
// an archive. The daemon's own words: nvidia-persistenced(1).
func persistencedUnit() []converge.Want {
	const unit = `# Written by gpuadm; it is put back to this at the next apply.
[Unit]
Description=NVIDIA Persistence Daemon
After=systemd-modules-load.service

[Service]
Type=forking
ExecStart=/usr/bin/nvidia-persistenced --verbose
ExecStopPost=/bin/rm -rf /run/nvidia-persistenced

[Install]
WantedBy=multi-user.target
`
	return []converge.Want{
		things.Exact("/etc/systemd/system/"+PersistencedUnit, []byte(unit), 0o644, "NVIDIA's installer brings the daemon without a unit"),
		things.UnitFilesRead("systemd starts units as it has read them", PersistencedUnit),
	}
}

// ServiceWants are what must stand once the module is loaded: the daemons that serve it. They belong to a stage of their
// own behind the driver's, since the module settles last in its stage and the daemons need it loaded.
func ServiceWants(s Services, f facts.Facts) ([]converge.Want, error) {
	var wants []converge.Want
	run := things.Running
	if otherKernel(f) {
		run = things.Enabled // without the module they fail
	}
	if s.Persistenced {
		wants = append(wants, run(PersistencedUnit, "keeps the GPUs initialised while no client runs"))
	}
	kind := FabricOf(f)
	switch {
	case s.FabricManager == "off", s.FabricManager == "auto" && kind == "":
		return wants, nil
	case kind == "" && f.Live:
		return nil, &converge.Trouble{
			What: "cannot run the fabric manager: this machine has no NVSwitch, and it would not start",
			Try:  []string{"fabricmanager = \"auto\" in [driver]"},
		}
	}
	manager := run(FabricManagerUnit, "joins the GPUs over NVSwitch: without it CUDA starts on none of them")
	if otherKernel(f) {
		return append(wants, manager), nil
	}
	if kind == "nvlink5" {
		wants = append(wants, switchReady())
	}
	return append(wants,
		fabricManagerFits(s.Version),
		manager,
		things.Fabric("every GPU is registered with the fabric manager"),
	), nil
}

// otherKernel says whether the modules are for other kernels than the one that runs, as in a container, or when the
// running one's package was removed: they are loaded, and what needs them started, when one of those is booted.
func otherKernel(f facts.Facts) bool {
	kernels := targets(f)
	return f.Live && len(kernels) > 0 && !slices.Contains(kernels, f.Kernel.Running)
}

// FabricOf says by what the GPUs are joined: nvswitch (PCI functions of class 0680, up to Hopper), nvlink5 (Blackwell's
// switches, managed over InfiniBand functions on boards with B200 and the like), "" if by neither.
func FabricOf(f facts.Facts) string {
	blackwell := false
	for _, p := range f.GPUs {
		if p.Vendor == "10de" && strings.HasPrefix(p.Class, "0680") {
			return "nvswitch"
		}
		blackwell = blackwell || p.Display() && slices.Contains(hgxBlackwell(), p.Device)
	}
	if blackwell {
		return "nvlink5"
	}
	return ""
}

// hgxBlackwell are the GPUs that come on HGX boards with NVLink 5 switches: B200, B300. Those of GB200 and GB300 are
// joined by switch trays, which have a fabric manager of their own.
// Source: supported-gpus in https://github.com/NVIDIA/open-gpu-kernel-modules, README.md.
func hgxBlackwell() []string { return []string{"2901", "3182"} }

// switchReady looks for what NVLink 5's fabric manager needs beside the driver: the switches' management function, an
// InfiniBand device whose product data say SW_MNG, and the module ib_umad to talk to it.
// Source: NVIDIA Fabric Manager User Guide, "NVLink 5 based systems"; https://github.com/NVIDIA/gpu-operator/issues/2781.
func switchReady() converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		if !v.Live() {
			return "", nil
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
		if !slices.ContainsFunc(names, manages) {
			return "cannot join the GPUs over NVLink: no InfiniBand device manages the switches (none says SW_MNG)", nil
		}
		if _, err := v.Stat("/sys/class/infiniband_mad"); err != nil {
			return "cannot join the GPUs over NVLink: the module ib_umad is not loaded, by which the switches are managed", nil
		}
		return "", nil
	}
	return things.Check("NVLink switches can be managed", look, "the fabric manager reaches the switches over InfiniBand",
		"modprobe ib_umad, and have it loaded at boot", "install the InfiniBand driver: mlx5_ib, of the kernel or of DOCA")
}

// fabricManagerFits finds a fabric manager of another version than the module, which refuses to start. One that runs was
// accepted; it is asked for its version only where it is installed and does not run.
func fabricManagerFits(version string) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		u, err := v.Unit(ctx, FabricManagerUnit)
		if errors.As(err, new(host.Later)) {
			return "", nil
		}
		if loaded, _ := facts.LoadedDriver(v); err != nil || u.Load == "not-found" || u.Active == "active" || loaded != version {
			return "", err // until the driver is there both may be of another version
		}
		out, err := v.Ask(ctx, "nv-fabricmanager", "--version")
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		} else if err != nil {
			return "", err
		}
		if is := spokenVersion().FindString(string(out)); is != "" && is != version {
			return fmt.Sprintf("cannot start the fabric manager: it is of version %s and the module of %s, and it serves its own only", is, version), nil
		}
		return "", nil
	}
	return things.Check("fabric manager is of the module's version", look, "the fabric manager serves a module of its own version only",
		"install nvidia-fabricmanager of version "+version)
}

var spokenVersion = pattern.Of(`[0-9]{3}\.[0-9]+(\.[0-9]+)?`)
