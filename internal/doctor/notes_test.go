// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// TestNotes: what an operator should know, and is not a fault, is a note and no cause.
func TestNotes(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(*incident.Machine)
		want   string
	}{
		"nvidia-uvm is not loaded": {func(m *incident.Machine) {
			m.Remove("sys/module/nvidia_uvm")
			m.Remove("dev/nvidia-uvm")
		}, "nvidia-uvm is not loaded"},
		"persistence is off": {func(m *incident.Machine) {
			const runs = "name = \"nvidia-persistenced.service\"\nenabled = \"enabled\"\nactive = \"active\""
			const off = "name = \"nvidia-persistenced.service\"\nenabled = \"disabled\"\nactive = \"inactive\""
			m.Change("sim.toml", runs, off)
		}, "initialises all GPUs again: sudo systemctl enable --now nvidia-persistenced\n"},
		"persistence is off, without its daemon": {func(m *incident.Machine) {
			const runs = "name = \"nvidia-persistenced.service\"\nenabled = \"enabled\"\nactive = \"active\""
			const other = "name = \"other.service\"\nenabled = \"disabled\"\nactive = \"inactive\""
			m.Change("sim.toml", runs, other)
		}, "again: sudo nvidia-smi --persistence-mode=1 (until the next boot)\n"},
		"persistence is off, and its daemon masked": {func(m *incident.Machine) {
			m.Masked("nvidia-persistenced")
		}, "again: sudo nvidia-smi --persistence-mode=1 (until the next boot)\n"},
		"the next kernel has no module": {func(m *incident.Machine) {
			m.Put("usr/lib/modules/6.8.0-90-generic/modules.dep", "")
		}, "the next boot starts kernel 6.8.0-90-generic, which has no module nvidia"},
		"its headers, for DKMS's module of Debian's archive": {func(m *incident.Machine) {
			m.Put("usr/lib/modules/6.8.0-90-generic/modules.dep", "")
			m.Remove("var/lib/dkms/nvidia")
			m.Put("var/lib/dkms/nvidia-current/550.163.01/source", "")
		}, "are lost then: sudo apt-get install linux-headers-6.8.0-90-generic\n"},
		"nvidia-fs is no driver": {func(m *incident.Machine) {
			m.Put("usr/lib/modules/6.8.0-90-generic/modules.dep", "")
			m.Remove("var/lib/dkms/nvidia")
			m.Put("var/lib/dkms/nvidia-fs/2.26.6/source", "")
		}, "are lost then: install the driver's modules for that kernel\n"},
		"its headers, on SUSE": {func(m *incident.Machine) {
			m.Put("usr/lib/modules/6.8.0-90-generic/modules.dep", "")
			m.Put("etc/os-release", "ID=sles\nVERSION_ID=15.6\nID_LIKE=suse\n")
			m.Remove("var/lib/dpkg/status")
			m.Put("usr/lib/sysimage/rpm/rpmdb.sqlite", "x")
		}, "are lost then: sudo zypper install kernel-default-devel\n"},
		"nearly too hot": {func(m *incident.Machine) { m.GPU(2, "celsius = 86\nslowsat = 87") }, "86 °C"},
		"errors of the PCIe link": {func(m *incident.Machine) {
			m.Put("sys/bus/pci/devices/"+m.GPUs()[0]+"/aer_dev_fatal", "DLP 2\nTOTAL_ERR_FATAL 2\n")
		}, "2 fatal"},
		"off the bus and on again": {func(m *incident.Machine) {
			m.Says("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",
				"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build")
		}, "answers again"},
		"little memory can be locked": {func(m *incident.Machine) {
			m.Put("sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := incident.Joined(t, true)
			c.breaks(w.Machine)
			r := examine(t, w.Node())
			check.That(t, codes(r) == "" && len(r.Unread) == 0, "%v %v", r.Causes, r.Unread)
			said := ""
			for _, n := range r.Notes {
				said += n.What + "\n"
			}
			check.That(t, strings.Contains(said, c.want) && (said == "") == (c.want == ""), "notes: %s", said)
		})
	}
}

// TestNoteOfNoDriver: plan shows how to get a driver only if node.toml names a version of it.
func TestNoteOfNoDriver(t *testing.T) {
	archive := must.Get(os.ReadFile("../../test/hosts/ubuntu24-h100.txtar"))(t)
	n := must.Get(simhost.New(archive))(t)
	for text, says := range map[string]string{
		"":                              "no node.toml asks for one",
		"[runtime]\n":                   "it has no version in [driver]",
		"[driver]\ngpu_count = 8\n":     "it has no version in [driver]",
		"[driver]\nversion = \"580\"\n": "shows how to get one",
	} {
		var s spec.Spec
		if text != "" {
			s = specs.Of(t, text)
		}
		r := Examine(t.Context(), n, s, Own{})
		must.That(t, len(r.Notes) > 0, "%q: no note", text)
		last := r.Notes[len(r.Notes)-1]
		check.Has(t, last.What, says, "%q: the note", text)
	}
}

// TestLockedMemory: the limit of the engine's process counts where RDMA devices are.
func TestLockedMemory(t *testing.T) {
	w := incident.Joined(t, true)
	w.Put("sys/class/infiniband/mlx5_0/node_type", "1: CA\n")
	n := limited64(t, w.Node())
	r := examine(t, n)
	isNote := len(r.Notes) == 1 && strings.Contains(r.Notes[0].What, "8388608")
	check.That(t, codes(r) == "" && isNote, "%v %v", r.Causes, r.Notes)
}

// limitedView has limits of each process as proc_pid_limits(5) shows them.
type limitedView struct{ host.View }

func limited64(t *testing.T, v host.View) host.View { t.Helper(); return limitedView{v} }

func (l limitedView) ReadFile(name string) ([]byte, error) {
	if strings.HasSuffix(name, "/limits") {
		return []byte("Max locked memory         8388608              8388608              bytes\n"), nil
	}
	return l.View.ReadFile(name)
}

// TestNoCUDA: the flag leaves CUDA out; a busy GPU in the exclusive mode is not a fault.
func TestNoCUDA(t *testing.T) {
	answers := func(code int) func([]string) host.CUDA {
		return func([]string) host.CUDA { return host.CUDA{Code: code} }
	}
	n := incident.Joined(t, true).Node()
	n.CUDAAnswers(answers(999))
	r := Examine(t.Context(), n, spec.Spec{}, Own{NoCUDA: true})
	check.That(t, codes(r) == "", "%v", r.Causes)

	w := incident.Joined(t, true)
	w.GPU(3, "clients = [41]")
	n = w.Node()
	n.CUDAAnswers(answers(host.CUDABusy))
	r = examine(t, n)
	check.That(t, codes(r) == "", "%v", r.Causes)
}

// TestFewerGPUs: the spec and the Node's label say how many GPUs there should be.
func TestFewerGPUs(t *testing.T) {
	s := spec.Spec{}
	s.Driver.GPUCount = 9
	r := Examine(t.Context(), incident.Joined(t, true).Node(), s, Own{})
	isCounted := codes(r) == "GPU-018" && strings.Contains(r.Causes[0].Found[0].What, "8 of 9")
	check.That(t, isCounted, "%v", r.Causes)
}
