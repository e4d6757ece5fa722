// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
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

	ManagerPackage, IMEXPackage string // "" where no package of the driver has the daemon
}

// services returns the desired state of the daemons for a choice and a spec.
func (c Choice) services(s spec.Driver, version string) Services {
	return Services{
		Version: version, Fabric: c.Fabric, Persistenced: s.Persistenced && !c.Guest, FabricManager: s.FabricManager, IMEX: s.IMEX, IMEXNodes: s.IMEXNodes,
		ManagerPackage: c.packageOf("fabricmanager"), IMEXPackage: c.packageOf("imex"),
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
	return []converge.Want{
		things.Exact("/etc/systemd/system/"+PersistencedUnit, []byte(unit), 0o644, "NVIDIA's installer brings the daemon without a unit"),
		things.UnitFilesRead("systemd starts units as it has read them", PersistencedUnit),
	}
}

// ServiceWants returns the wants for the driver's daemons, which need the loaded module. They have
// a stage of their own after the modules', since the module is a Follower, which gpuadm makes last
// in its stage.
func ServiceWants(s Services, f facts.Facts) ([]converge.Want, error) {
	var wants []converge.Want
	run := things.Running
	if otherKernel(f) {
		run = things.Enabled // without the module they fail
	}
	if s.Persistenced {
		wants = append(wants, run(PersistencedUnit, "keeps the GPUs initialised while no client runs"))
	}
	imex, err := imexWants(s, f)
	if err != nil {
		return nil, err
	}
	manager, err := managerWants(s, f)
	return append(append(wants, imex...), manager...), err
}

// managerWants returns the wants for the fabric manager on a machine with NVSwitches of its own.
func managerWants(s Services, f facts.Facts) ([]converge.Want, error) {
	switches := s.Fabric == FabricSwitch || s.Fabric == FabricNVLink5
	switch {
	case s.FabricManager == "off", s.FabricManager == "auto" && !switches:
		return nil, nil
	case !switches && f.Live:
		return nil, &trouble.Error{
			What: "cannot run the fabric manager: this machine has no NVSwitch, and it would not start",
			Try:  []string{"fabricmanager = \"auto\" in [driver]"},
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
	return append(wants,
		daemonFits(FabricManagerUnit, "nv-fabricmanager", "the fabric manager", s.ManagerPackage, s.Version),
		things.Running(FabricManagerUnit, why),
		kmod.Fabric("every GPU is registered with the fabric manager"),
	), nil
}

// otherKernel says whether the modules are only for kernels that do not run, as in a container, or
// after the running kernel's package was removed. The boot of such a kernel loads the modules, and
// starts the daemons that need them.
func otherKernel(f facts.Facts) bool {
	kernels := f.Kernel.Targets(f.Live)
	return f.Live && len(kernels) > 0 && !slices.Contains(kernels, f.Kernel.Running)
}
