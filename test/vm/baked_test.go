// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestVMBaked is a node's first day on a baked image: its own kernel, its own systemd, a driver's modules that the kernel loads, GPUs
// that are not there. The power is cut in the middle of the first boot's run, the boot after that finishes the run and needs a
// reboot, the unit makes it, and the node is ready. Later, with GPUs that no reboot helps, the reboots come to an end.
func TestVMBaked(t *testing.T) {
	asked(t)
	haveEmulator(t)
	p := newPC(t, bake(t))
	firstBoot(t, p)
	becomesReady(t, p)
	rebootsInVain(t, p)
}

// atWork is the line of gpuadm that comes before the GPUs change.
const atWork = "Stopped nvidia-persistenced.service"

// firstBoot cuts the power while the first boot's run changes the GPUs' MIG mode.
func firstBoot(t *testing.T, p *pc) {
	t.Helper()
	p.on("lab.gpus=A100 lab.keeps lab.unreset lab.latency=2000")
	p.says(atWork)
	p.cut()
}

// becomesReady: the run that was cut is finished first, by way of a reboot.
func becomesReady(t *testing.T, p *pc) {
	t.Helper()
	p.on("lab.gpus=A100 lab.keeps lab.unreset")
	is := p.answers()
	if boots := strings.Count(p.read("console"), "Linux version "); boots != 2 {
		t.Errorf("%d boots, want one that reboots and the next: %s", boots, p.last())
	}
	is.says("kernel", 0, p.of.kernel+"\n")
	is.says("init", 0, "/lib/systemd/systemd\n")
	is.says("modules", 0, "nvidia\n", "nvidia_uvm\n")
	is.says("cloud-init", 0, "status: done")
	for _, unit := range []string{"containerd", "gpuadm", "kubelet", "gpuadm-ready"} {
		is.says(unit, 0, "ActiveState=active\n")
	}
	if failed := is.has["failed"].text; failed != "" {
		t.Errorf("units have failed:\n%s", failed)
	}
	is.says("gate", 0, "")
	is.says("apply", 0, "Nothing to do.")
	is.says("status", 0, "converged")
	is.ordered()
	var gpus fakenvml.State
	must.OK(t, json.Unmarshal([]byte(is.has["gpus"].text), &gpus))
	for i, gpu := range gpus.GPUs {
		if len(gpu.Instances) != 7 {
			t.Errorf("GPU %d has %d partitions", i, len(gpu.Instances))
		}
	}
	console := p.read("console")
	for _, words := range []string{"began: continues", "Rebooting: "} {
		if !strings.Contains(console, words) {
			t.Errorf("the boot that reboots does not say %q", words)
		}
	}
}

// rebootsInVain: the GPUs lose their mode at each boot from now on.
func rebootsInVain(t *testing.T, p *pc) {
	t.Helper()
	p.on("lab.gpus=A100 lab.unreset")
	is := p.answers()
	if boots := strings.Count(p.read("console"), "Linux version "); boots != 3 {
		t.Errorf("%d boots, want two reboots: %s", boots, p.last())
	}
	is.says("gpuadm", 0, "ActiveState=failed\n")
	is.says("unit-status", 3, "has no effect after 2 reboots")
	is.says("gate", 1, "cannot let kubelet start")
	if strings.Contains(is.has["kubelet"].text, "ActiveState=active\n") {
		t.Errorf("kubelet runs: %s", is.has["kubelet"].text)
	}
}

// ordered: cloud-init has written its files and containerd runs when gpuadm begins, and kubelet begins when gpuadm has ended. By
// the times of the units, and by systemd's own word on what waited for what.
func (m machine) ordered() {
	m.t.Helper()
	for _, unit := range []string{"cloud-config", "containerd"} {
		if up, begins := m.time(unit, "ActiveEnterTimestampMonotonic"), m.time("gpuadm", "ExecMainStartTimestampMonotonic"); up == 0 || begins < up {
			m.t.Errorf("gpuadm began at %d µs, %s was up at %d µs", begins, unit, up)
		}
	}
	for _, unit := range []string{"kubelet", "gpuadm-ready"} {
		if ended, begins := m.time("gpuadm", "ExecMainExitTimestampMonotonic"), m.time(unit, "InactiveExitTimestampMonotonic"); ended == 0 || begins < ended {
			m.t.Errorf("%s began at %d µs, gpuadm ended at %d µs", unit, begins, ended)
		}
	}
	m.says("chain", 0, "kubelet.service", "gpuadm.service")
	m.says("chain-gpuadm", 0, "gpuadm.service", "cloud-config.service")
}

// time reads a unit's time stamp, in microseconds since boot.
func (m machine) time(unit, property string) int {
	m.t.Helper()
	found := regexp.MustCompile(`(?m)^` + property + `=(\d+)$`).FindStringSubmatch(m.has[unit].text)
	if found == nil {
		m.t.Errorf("%s has no %s: %s", unit, property, m.has[unit].text)
		return 0
	}
	n, _ := strconv.Atoi(found[1])
	return n
}
