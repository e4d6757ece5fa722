// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// hangs reports whether the driver has not answered in time: at all, or about a GPU.
func hangs(f facts.Facts) bool {
	return f.NVMLSays == host.Overdue || f.NVMLSays == host.Stuck
}

// slowest is how long a driver that is well may take until its first answer. NVIDIA says 1 to 3
// seconds for each GPU that no process holds
// (https://docs.nvidia.com/deploy/driver-persistence/overview.html); on eight A100 it was more than
// 25 (https://github.com/Azure/AgentBaker/pull/2829).
const slowest = time.Minute

// driverHung tells a driver that hangs from a driver that still starts its GPUs. A driver hangs if
// it has stopped at a GPU, or if it does not answer although its GPUs are started, although
// programs wait in the kernel for it, or for longer than any start takes. Of any other driver
// doctor only says that it has not answered yet.
//
// The Node stays ready meanwhile: https://github.com/NVIDIA/NVSentinel/issues/1576.
func driverHung(m *Machine) []Finding {
	f := m.Facts()
	if !hangs(f) {
		return nil
	}

	stuck, started := m.driversPrograms()
	mayStart := f.NVMLSays == host.Overdue && m.own.Wait < slowest
	if mayStart && len(stuck) == 0 && !started && !m.kernelWaits() {
		const text = "%s; no program holds the GPUs, so it may still be starting them, which takes seconds for each; %s"
		m.cannotRead("GPUs", fmt.Errorf(text, f.NoDriver, waitsLonger()))
		return nil
	}

	m.cannotRead("GPUs", errors.New(f.NoDriver))
	what := f.NoDriver
	if len(stuck) > 0 {
		what += "; in the kernel's hands: " + strings.Join(trouble.Few(stuck, 4), ", ")
	}
	return []Finding{{What: what}}
}

// driversPrograms looks at the programs that have a device of the driver open: which of them wait
// in the kernel, where no signal ends them, and whether one has a GPU open, which is started then.
func (m *Machine) driversPrograms() (stuck []string, started bool) {
	holders, _ := devices.Holders(m.ctx, m.View)
	for _, holder := range holders {
		if m.waitsInKernel(holder.PID) {
			stuck = append(stuck, holder.Who())
		}
		started = started || holder.HasAnyGPU()
	}

	return stuck, started || m.keepsGPUs()
}

// keepsGPUs reports whether nvidia-persistenced keeps the GPUs started. Ubuntu's older units start
// it so that it does not: --no-persistence-mode, nvidia-persistenced(1).
func (m *Machine) keepsGPUs() bool {
	u, ok := m.Unit(drivers.PersistencedUnit)
	if !ok || u.Active != "active" {
		return false
	}
	words, _ := m.text(fmt.Sprintf("/proc/%d/cmdline", u.PID))
	return !strings.Contains(words, "--no-persistence-mode")
}

// waitsInKernel reports whether a process is in state D, and older than any start of the GPUs for
// which it could wait: proc_pid_stat(5).
func (m *Machine) waitsInKernel(pid int) bool {
	text, _ := m.text(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(text, ") ") // the name may have spaces
	fields := strings.Fields(after)
	if len(fields) == 0 || fields[0] != "D" {
		return false
	}

	const ofStart = 22 - 3 // starttime is the field 22, and the first one here is the field 3
	if len(fields) <= ofStart {
		return true
	}
	ticks, err := strconv.Atoi(fields[ofStart])
	uptime, known := m.uptime()
	if err != nil || !known {
		return true
	}
	const tick = time.Second / 100 // USER_HZ: time(7)
	return uptime-time.Duration(ticks)*tick > slowest
}

// uptime is how long ago the machine has booted: proc_uptime(5).
func (m *Machine) uptime() (time.Duration, bool) {
	text, _ := m.text("/proc/uptime")
	seconds, _, _ := strings.Cut(text, " ")
	since, err := time.ParseDuration(seconds + "s")
	return since, err == nil
}

// kernelWaits reports whether the kernel says that a task waits in NVIDIA's modules, for two
// minutes as it is set in most kernels: "INFO: task nvidia-smi:1346198 blocked for more than 120
// seconds.", with the task's calls below. Sources: check_hung_task in kernel/hung_task.c of the
// kernel's tree;
// https://github.com/leptonai/gpud/pull/117.
func (m *Machine) kernelWaits() bool {
	const longestTrace = 60 // lines
	lines := m.sinceLoad()
	for i, line := range lines {
		if !strings.Contains(line, " blocked for more than ") {
			continue
		}
		trace := lines[i:min(i+longestTrace, len(lines))]
		if slices.ContainsFunc(trace, func(line string) bool { return strings.Contains(line, "[nvidia") }) {
			return true
		}
	}

	return false
}
