// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Units of the driver's own daemons, the same on all distributions.
const (
	PersistencedUnit  = "nvidia-persistenced.service"
	FabricManagerUnit = "nvidia-fabricmanager.service"
)

// Services is the desired state of the driver's daemons.
type Services struct {
	Version       string   // of the module; fabric manager and IMEX must have exactly this version
	Fabric        string   // what joins the GPUs: FabricOf
	Persistenced  bool     // keep the driver's state while no client runs
	FabricManager string   // auto, on, off
	IMEX          string   // auto, host, off
	IMEXNodes     []string // addresses of the IMEX domain's nodes; empty: those in IMEX's own file

	ManagerPackage string // of the fabric manager; "" where no package of the driver has it
	IMEXPackage    string // of IMEX; "" where no package of the driver has it
}

// services returns the desired state of the daemons for a choice and a spec.
func (c Choice) services(s spec.Driver, version string) Services {
	return Services{
		Version:        version,
		Fabric:         c.Fabric,
		Persistenced:   s.Persistenced && !c.Guest,
		FabricManager:  s.FabricManager,
		IMEX:           s.IMEX,
		IMEXNodes:      s.IMEXNodes,
		ManagerPackage: c.packageOf("fabricmanager"),
		IMEXPackage:    c.packageOf("imex"),
	}
}

// persistencedUnit writes the daemon's unit for a driver of NVIDIA's installer, which has a unit
// only as a sample in an archive. Source: nvidia-persistenced(1).
func persistencedUnit() []converge.Want {
	const unit = `# Written by gpuadm; each apply reverts changes to this file.
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
	file := "/etc/systemd/system/" + PersistencedUnit
	return []converge.Want{
		things.Exact(file, []byte(unit), 0o644, "NVIDIA's installer brings the daemon without a unit"),
		things.UnitFilesRead("systemd starts units as it has read them", PersistencedUnit),
	}
}

// ServiceWants returns the wants for the driver's daemons, which need the loaded module. They have
// a stage of their own after the modules', since the module is a Follower, which gpuadm makes last
// in its stage.
func ServiceWants(s Services, f facts.Facts) ([]converge.Want, error) {
	var wants []converge.Want
	if s.Persistenced {
		run := things.Running
		if otherKernel(f) {
			run = things.Enabled // the daemon fails without the module, which the next boot loads
		}
		wants = append(wants, run(PersistencedUnit, "keeps the GPUs initialised while no client runs"))
	}

	imex, err := imexWants(s, f)
	if err != nil {
		return nil, err
	}
	manager, err := managerWants(s, f)
	if err != nil {
		return nil, err
	}

	wants = append(wants, imex...)
	return append(wants, manager...), nil
}

// managerWants returns the wants for the fabric manager on a machine with NVSwitches of its own.
func managerWants(s Services, f facts.Facts) ([]converge.Want, error) {
	hasSwitches := s.Fabric == FabricSwitch || s.Fabric == FabricNVLink5
	switch {
	case s.FabricManager == "off":
		return nil, nil
	case s.FabricManager == "auto" && !hasSwitches:
		return nil, nil
	case !hasSwitches && f.Live:
		return nil, &trouble.Error{
			What: "cannot run the fabric manager: this machine has no NVSwitch, and it would not start",
			Try:  []string{`fabricmanager = "auto" in [driver]`},
		}
	}

	const why = "joins the GPUs over NVSwitch: without it CUDA starts on none of them"
	if otherKernel(f) {
		return []converge.Want{things.Enabled(FabricManagerUnit, why)}, nil
	}

	var wants []converge.Want
	if s.Fabric == FabricNVLink5 {
		wants = append(wants, switchReady())
	}
	manager := daemon{
		unit:    FabricManagerUnit,
		program: "nv-fabricmanager",
		name:    "the fabric manager",
		pkg:     s.ManagerPackage,
	}
	wants = append(wants, manager.hasVersion(s.Version), things.Running(FabricManagerUnit, why))
	if partitionsOwned(f) == "" { // else GPUs register when their partition is activated
		wants = append(wants, kmod.Fabric("every GPU is registered with the fabric manager"))
	}
	return wants, nil
}

// daemon is a daemon that serves a module of its own version only.
type daemon struct {
	unit    string
	program string
	name    string // as messages have it
	pkg     string // the package that has it; "" if none is known
}

// hasVersion refuses a daemon of another version than the module: it would not serve that module.
// It asks the program and not the package database, since a package of one branch may have the
// program of another. It passes a daemon that runs, since the module has accepted it, and a unit
// that is not installed.
func (d daemon) hasVersion(version string) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		unit, err := v.Unit(ctx, d.unit)
		if errors.As(err, new(host.Later)) {
			return "", nil
		}
		if err != nil || unit.Load == "not-found" || unit.Active == "active" {
			return "", err
		}
		if loaded, _ := facts.LoadedDriver(v); loaded != version {
			return "", nil // until the driver is installed both may be of another version
		}

		out, err := v.Ask(ctx, d.program, "--version")
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		found := versionInText().FindString(string(out))
		if found == "" || found == version {
			return "", nil
		}
		return fmt.Sprintf("cannot start %s: its version is %s and the module's is %s, and it serves a module of its own version only", d.name, found, version), nil
	}

	pkg := cmp.Or(d.pkg, "that brings "+d.program)
	return things.Check(d.name+" is of the module's version", look,
		d.name+" serves a module of its own version only",
		fmt.Sprintf("install the package %s of version %s", pkg, version))
}

var versionInText = pattern.Of(`[0-9]{3}\.[0-9]+(\.[0-9]+)?`)
