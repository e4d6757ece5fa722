// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Format is the version of the report's form.
const Format = 1

// Report is what doctor says of a machine.
type Report struct {
	Format int      `json:"format"`
	Time   string   `json:"time"`              // when the machine was examined, in UTC: RFC 3339
	Host   string   `json:"host"`              // what machine this is, in a line
	State  State    `json:"state"`             // of the machine, in one word
	Causes []Cause  `json:"causes"`            // root causes; none: no fault was found
	Unread []Unread `json:"unknown,omitempty"` // what could not be checked
	Checks int      `json:"checks"`            // how many there are
	Notes  []Found  `json:"notes,omitempty"`   // what is not a fault of the machine, and an operator should know
}

// State is what a report says of the machine in one word.
type State string

// The states. A fault that was found counts more than a part that could not be looked at.
const (
	Healthy State = "healthy" // all checks that apply here were made, and found nothing
	Faulty  State = "faulty"  // there are root causes
	Unknown State = "unknown" // no fault was found in what could be looked at
)

// Judge sets the state, by the causes and by what could not be checked.
func (r *Report) Judge() {
	switch {
	case len(r.Causes) > 0:
		r.State = Faulty
	case len(r.Unread) > 0:
		r.State = Unknown
	default:
		r.State = Healthy
	}
}

// Cause is a root cause: a fault that no other one explains.
type Cause struct {
	Code string `json:"code"`
	// Severity is down: no pod gets a GPU, or the Node is not ready; part: some GPUs or pods are
	// affected; risk: all works now.
	Severity   string   `json:"severity"`
	Title      string   `json:"title"`
	Found      []Found  `json:"found"`
	Meaning    string   `json:"meaning"`
	Explains   []Found  `json:"explains,omitempty"`
	Fix        string   `json:"fix"`
	Commands   []string `json:"commands,omitempty"`
	Interrupts string   `json:"interrupts"`
	NoRepair   string   `json:"no_repair,omitempty"` // why gpuadm repair cannot fix it
	Sources    []string `json:"sources"`
}

// Found is one fault that was found.
type Found struct {
	Code   string `json:"code,omitempty"`
	Object string `json:"object,omitempty"`
	What   string `json:"what"`
}

// Unread is a part of the machine that could not be read, so that its checks say nothing.
type Unread struct {
	What string `json:"what"`
	Why  string `json:"cause"`
}

// drainFirst puts the drain of the Node before commands that end what runs on a GPU.
func (m *Machine) drainFirst(causes []Cause) {
	kubelet := m.Basics().Kubelet
	registered := registration{}
	if kubelet.Joined {
		registered, _ = m.Registration()
	}

	for i := range causes {
		cause := &causes[i]
		resets := slices.ContainsFunc(cause.Commands, isReset)
		reboots := slices.ContainsFunc(cause.Commands, isReboot)
		if resets {
			cause.Commands = m.releaseGPUs(cause.Commands, registered.pluginPod())
		}
		if kubelet.Joined && (resets || reboots) {
			const drain = "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data"
			cause.Commands = append([]string{drain}, cause.Commands...)
		}
	}
}

func isReset(command string) bool { return strings.Contains(command, "--gpu-reset") }

func isReboot(command string) bool {
	return strings.HasSuffix(command, "reboot") || strings.Contains(command, "poweroff")
}

// releaseGPUs stops what holds the GPUs around commands that reset them: the driver's own daemons,
// nvidia-smi(1), --gpu-reset, and the device plugin.
func (m *Machine) releaseGPUs(commands []string, pluginPod string) []string {
	for _, unit := range m.daemons() {
		stop := []string{"sudo systemctl stop " + unit}
		start := []string{"sudo systemctl start " + unit}
		commands = slices.Concat(stop, commands, start)
	}

	// Both count as clients, and refuse a reset: "In use by another client".
	// Sources: https://github.com/NVIDIA/mig-parted/issues/181 (nvidia_drm);
	// https://github.com/NVIDIA/NVSentinel/pull/1692 (persistence mode).
	if m.has("/sys/module/nvidia_drm") {
		unload := []string{"sudo modprobe -r nvidia-drm"}
		load := []string{"sudo modprobe nvidia-drm"}
		commands = slices.Concat(unload, commands, load)
	}
	isPersistent := func(gpu host.GPU) bool { return gpu.Persistent }
	byDaemon := slices.Contains(m.daemons(), drivers.PersistencedUnit)
	if !byDaemon && slices.ContainsFunc(m.answering(), isPersistent) {
		off := []string{"sudo nvidia-smi --persistence-mode=0"}
		on := []string{"sudo nvidia-smi --persistence-mode=1"}
		commands = slices.Concat(off, commands, on)
	}

	// A drain leaves the pods of DaemonSets. The device plugin is one, and tolerates no NoExecute:
	// see repellingTaints.
	if pluginPod != "" && m.ownDriver() {
		namespace, pod, _ := strings.Cut(pluginPod, "/")
		const taint = "kubectl taint node NODE gpu-reset"
		wait := "kubectl -n " + namespace + " wait --for=delete pod/" + pod + " --timeout=2m"
		commands = slices.Concat([]string{taint + "=:NoExecute", wait}, commands, []string{taint + "-"})
	}

	return commands
}

// daemons returns the driver's own daemons that hold a GPU, the last to stop first.
func (m *Machine) daemons() (units []string) {
	holders, _ := devices.Holders(m.ctx, m.View)
	for _, unit := range slices.Backward(devices.Daemons()) {
		isUnit := func(holder devices.Holder) bool { return holder.Unit == unit }
		if slices.ContainsFunc(holders, isUnit) {
			units = append(units, unit)
		}
	}

	return units
}
