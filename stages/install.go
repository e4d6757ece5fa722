// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/cloud"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/images/systemd"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The paths of the boot unit and its binary.
const (
	Binary    = "/usr/local/sbin/gpuadm"
	BootUnit  = "gpuadm.service"
	ReadyUnit = "gpuadm-ready.service"
	specPath  = "gpuadm-spec.path"
	specUnit  = "gpuadm-spec.service"
	driftUnit = "gpuadm-drift.service"
	driftTime = "gpuadm-drift.timer"
	unitDir   = "/etc/systemd/system/"
	gateDir   = "/etc/systemd/system/kubelet.service.d"
	wantsDir  = "/etc/systemd/system/multi-user.target.wants"
	timersDir = "/etc/systemd/system/timers.target.wants"
	gateFile  = gateDir + "/50-gpuadm.conf"
)

// Units returns the unit files of the install stage.
func Units() []string {
	return []string{unitDir + BootUnit, unitDir + ReadyUnit, gateFile, unitDir + specPath, unitDir + specUnit, unitDir + driftTime, unitDir + driftUnit}
}

// Installed returns gpuadm's files that run at boot: the unit files, and the binary if its unit
// file is there. Without unit files no unit runs a binary of this name as root; and on a Debian
// that has /etc/staff-group-for-usr-local the group staff can write to its folder (Debian policy
// 9.1.2; base-files, /usr/share/base-files/staff-group-for-usr-local).
func Installed(v host.View) []string {
	names := Units()
	if _, err := v.Lstat(names[0]); err == nil {
		names = append(names, Binary)
	}
	return names
}

// InstallName is the name of the stage that Install makes.
const InstallName = "install"

// maskNotes names gpuadm's units that an operator has masked: gpuadm leaves them masked.
func maskNotes(v host.View) (notes []string) {
	for _, name := range Units() {
		if unit := path.Base(name); things.IsMasked(v, name) {
			notes = append(notes, fmt.Sprintf("%s is masked, so systemd does not start it; if that is not meant: systemctl unmask %s", unit, unit))
		}
	}
	return notes
}

// Install puts a gpuadm binary and its boot unit on the machine, and makes kubelet wait for the
// unit. A flag asks for it, and not the spec: once installed, both stay until undo.
func Install(binary []byte) converge.Stage {
	return converge.Stage{
		Name:  InstallName,
		About: "gpuadm and its boot unit, which kubelet waits for",
		Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
			wants := things.Folders("/usr/local/sbin", "")
			wants = append(wants, things.Exact(Binary, binary, 0o755, "the boot unit runs it"))
			wants = append(wants, things.Folders(gateDir, "")...)
			// systemd makes a missing folder when it enables a unit. gpuadm makes it first, so that
			// an undo removes it after any cut run.
			for _, dir := range []string{wantsDir, timersDir} {
				enabled := things.Folders(dir, "")
				wants = append(wants, enabled[len(enabled)-1])
			}
			units := []converge.Want{
				things.Exact(unitDir+BootUnit, systemd.Service, 0o644, "it converges the node at every boot"),
				things.Exact(unitDir+ReadyUnit, systemd.Ready, 0o644, "it makes the stages that need a running kubelet"),
				things.Exact(unitDir+specUnit, systemd.Spec, 0o644, "kubelet waits for a spec that cloud-init writes late"),
				things.Exact(unitDir+specPath, systemd.SpecPath, 0o644, "it finds such a spec"),
				things.Exact(unitDir+driftUnit, systemd.Drift, 0o644, "it reports what has drifted, and touches nothing"),
				things.Exact(unitDir+driftTime, systemd.DriftTimer, 0o644, "it runs that once an hour"),
				things.Exact(gateFile, systemd.Gate, 0o644, "kubelet waits until the node is ready"),
				things.Enabled(BootUnit, "at every boot"),
				things.Enabled(ReadyUnit, "at every boot, once kubelet runs"),
				things.Enabled(specPath, "at every boot"),
				things.Enabled(driftTime, "at every boot"),
			}
			for _, w := range units {
				wants = append(wants, things.UnlessMasked(w))
			}
			return append(wants,
				things.UnitFilesRead("systemd must read the changed unit files", BootUnit, ReadyUnit, specPath, specUnit, driftTime, driftUnit, "kubelet.service"),
			), nil
		},
	}
}

// preflight is the stage that verifies what must be true before the first touch.
func preflight() converge.Stage {
	return converge.Stage{
		Name:  "preflight",
		About: "verifies what must hold before the first touch: the expected GPUs, and the cloud's own scripts",
		Notes: func(v host.View, _ spec.Spec, f facts.Facts) []string {
			notes := append(cloud.Limits(f), maskNotes(v)...)
			for _, name := range []string{"/etc", converge.Home} {
				if room, err := v.Room(name); err == nil && room.ReadOnly {
					notes = append(notes, name+" is on a read-only file system: an apply that has something to change there fails")
				}
			}
			return notes
		},
		Wants: func(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
			if !f.Live {
				return nil, nil
			}
			return append(cloud.Begin(s, f), gpusOnTheBus(s, f)), nil
		},
	}
}

// gpusOnTheBus wants as many GPUs as the spec expects, else those of before. A GPU that fell off
// the bus leaves nothing on it: without this check a machine that lost all its GPUs would pass as a
// machine that never had any, and a machine with seven of eight as complete.
func gpusOnTheBus(s spec.Spec, f facts.Facts) converge.Want {
	n, expect := 0, s.Driver.GPUCount
	for _, p := range f.GPUs {
		if p.Display() {
			n++
		}
	}
	look := func(_ context.Context, v host.View) (string, error) {
		if expect > 0 && n == expect {
			return "", nil
		}
		why := node.MissingGPUs(v, s, f)
		problem := "cannot prepare this node: the PCI bus has " + trouble.Count(n, "NVIDIA GPU")
		meant := fmt.Sprintf("if %d is right: gpu_count = %d in [driver]", n, n)
		switch {
		case expect == 0 && why == "":
			return "", nil
		case expect == 0 && n == 0: // gpu_count = 0 expects no number
			meant = "if the GPUs were taken out for good: " + trouble.Command("undo --to all") + ", then apply again"
		case n == 0:
			meant = "if the machine should have none: remove gpu_count from [driver]"
		}
		if expect > 0 {
			problem += fmt.Sprintf(", node.toml expects %d", expect)
		}
		if why != "" {
			problem += ": " + why
		}
		return problem + things.OrTry(faults.Of("GPU-001").Fix) + things.OrTry(meant), nil
	}
	return things.Check("NVIDIA GPUs on the PCI bus", look, "a GPU that falls off the bus leaves nothing on it",
		"lspci -d 10de: lists them, and dmesg shows PCI errors")
}
