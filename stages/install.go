// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/images/systemd"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
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
	gateFile  = gateDir + "/" + GateDropIn
)

const (
	// KubeletUnit is the unit that the gate holds back.
	KubeletUnit = "kubelet.service"
	// GateDropIn is the drop-in of kubelet's unit that asks the gate.
	GateDropIn = "50-gpuadm.conf"
)

// OwnServices returns the units that converge this machine or look at it, the first to start first.
func OwnServices() []string { return []string{BootUnit, ReadyUnit, driftUnit} }

// HasBootUnit says whether the boot unit's file exists: that of the install stage, or a package's.
func HasBootUnit(v host.View) (bool, error) {
	for _, folder := range []string{unitDir, "/usr/lib/systemd/system/"} {
		_, err := v.Lstat(folder + BootUnit)
		if err == nil {
			return true, nil
		}
		if !host.NotExist(err) {
			return false, err
		}
	}
	return false, nil
}

// Units returns the unit files of the install stage.
func Units() []string {
	return []string{
		unitDir + BootUnit,
		unitDir + ReadyUnit,
		gateFile,
		unitDir + specPath,
		unitDir + specUnit,
		unitDir + driftTime,
		unitDir + driftUnit,
	}
}

// Installed returns gpuadm's files that run at boot: the unit files, and the binary if its unit
// file exists. Without unit files no unit runs a binary of this name as root; and on a Debian
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

// maskNotes names gpuadm's units, and its drop-in, that an operator has masked: gpuadm leaves them
// masked. systemctl unmask knows no drop-ins. The commands are typed outside an image.
func maskNotes(v host.View) (notes []string) {
	for _, name := range Units() {
		if !things.IsMasked(v, name) {
			continue
		}
		if name == gateFile {
			notes = append(notes, fmt.Sprintf("%s is masked, so kubelet does not wait until the node is ready; if that is not meant: %s", name, removes(v, name)))
			continue
		}
		unit := path.Base(name)
		notes = append(notes, fmt.Sprintf("%s is masked, so systemd does not start it; if that is not meant: %s", unit, unmasks(v, unit)))
	}
	return notes
}

// removes is the command that removes a drop-in.
func removes(v host.View, name string) string {
	command := "rm " + host.ShellWord(path.Join(v.Root(), name))
	if v.Live() {
		command += " && systemctl daemon-reload"
	}
	return command
}

// unmasks is the command that takes the mask off a unit.
func unmasks(v host.View, unit string) string {
	if v.Root() == "/" {
		return "systemctl unmask " + unit
	}
	return "systemctl --root=" + host.ShellWord(v.Root()) + " unmask " + unit
}

// Install puts a gpuadm binary and its boot unit on the machine, and makes kubelet wait for the
// unit. A flag asks for it, and not the spec: once installed, both stay until undo.
func Install(binary []byte) converge.Stage {
	return converge.Stage{
		Name:  InstallName,
		About: "gpuadm and its boot unit, which kubelet waits for",
		Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) { return installWants(binary), nil },
	}
}

func installWants(binary []byte) []converge.Want {
	wants := things.Folders("/usr/local/sbin", "")
	wants = append(wants, things.Exact(Binary, binary, 0o755, "the boot unit runs it"))
	wants = append(wants, things.Folders(gateDir, "")...)

	// systemd makes a missing folder when it enables a unit. gpuadm makes it first, so that an undo
	// removes it after any cut run.
	for _, dir := range []string{wantsDir, timersDir} {
		folders := things.Folders(dir, "")
		wants = append(wants, folders[len(folders)-1])
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
	return append(wants, things.UnitFilesRead("systemd must read the changed unit files",
		BootUnit, ReadyUnit, specPath, specUnit, driftTime, driftUnit, KubeletUnit))
}
