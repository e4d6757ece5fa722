// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
)

// Words that several checks share.
const (
	reset  = "programs on this GPU, and on those that NVLink joins it with"
	memory = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"
	nvml   = "https://docs.nvidia.com/deploy/nvml-api/"
	debug  = "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html"
	fabric = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
)

func gpuChecks() []Check {
	return slices.Concat(boardChecks(), fabricChecks())
}

func boardChecks() []Check {
	return []Check{
		{
			Code: "GPU-001", Title: "a GPU has fallen off the bus",
			Reads:   "the first bytes of each GPU's PCI configuration",
			Meaning: "the GPU no longer answers: power, cooling, seating or a broken board",
			Command: "sudo poweroff", Interrupts: "the node", Find: offBus,
			Sources: []string{
				"https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
				"https://github.com/NVIDIA/k8s-device-plugin/issues/2038",
			},
		},
		{
			Code: "GPU-003", Title: "a GPU does not answer the driver",
			Reads:   "NVML's answers for each GPU",
			Meaning: "no program can use this GPU",
			Fix:     "reset the GPU, or power the machine off and on", Interrupts: reset, Find: ofGPUs(lost, resetCommand),
			Sources: []string{nvml, debug},
		},
		{
			Code: "GPU-002", Title: "a GPU on the bus is missing in the driver",
			Reads:   "the GPUs on the PCI bus and those that NVML lists",
			Meaning: "the node offers fewer GPUs than it has",
			Fix:     "the kernel log says why the driver did not take it",
			Command: "journalctl --dmesg --grep 'NVRM|Xid|nvidia' --lines=50", Interrupts: "nothing", Find: unseen,
			Sources: []string{debug, "https://github.com/NVIDIA/k8s-device-plugin/issues/2038"},
		},
		{
			Code: "GPU-007", Title: "a row of GPU memory could not be remapped",
			Reads:      "NVML: remapped rows",
			Meaning:    "the board has no spare row left where it is needed: errors come again",
			Fix:        "drain the node and have the board replaced",
			Command:    "nvidia-smi --query-remapped-rows=gpu_bus_id,remapped_rows.failure --format=csv",
			Interrupts: "the node", Find: ofGPUs(when(func(g host.GPU) bool { return g.RemapFails }, "has a faulty row of memory that could not be remapped"), nil),
			Sources: []string{memory, nvml},
		},
		{
			Code: "GPU-006", Title: "a row of GPU memory waits to be remapped",
			Reads:   "NVML: remapped rows",
			Meaning: "a faulty row is used until the GPU is reset",
			Fix:     "drain the node and reset the GPU", Interrupts: reset, Find: ofGPUs(when(func(g host.GPU) bool { return g.RemapWaits }, "has a faulty row of memory that is remapped at its next reset"), resetCommand),
			Sources: []string{memory, nvml},
		},
		{
			Code: "GPU-005", Title: "a GPU had memory errors that ECC could not correct",
			Reads:   "NVML: volatile uncorrected errors",
			Meaning: "programs were ended, or may have had wrong data",
			Fix:     "drain the node and reset the GPU; if it comes again, have the board replaced", Interrupts: reset,
			Find:    ofGPUs(uncorrected, resetCommand),
			Sources: []string{memory, nvml},
		},
		{
			Code: "GPU-008", Title: "a GPU slows itself down for heat",
			Reads:      "NVML: clocks event reasons",
			Meaning:    "its clocks are halved or lower",
			Fix:        "find what keeps air or water from it: fans, filters, the room",
			Command:    "nvidia-smi --query-gpu=pci.bus_id,temperature.gpu,clocks_event_reasons.hw_thermal_slowdown --format=csv",
			Interrupts: "nothing",
			Find:       slowed("heat", "is slowed down by its own protection from heat"),
			Sources:    []string{nvml, debug},
		},
		{
			Code: "GPU-009", Title: "the power supply slows a GPU down",
			Reads:   "NVML: clocks event reasons",
			Meaning: "the machine's power supply asserts the power brake: clocks are halved or lower",
			Fix:     "verify the power supplies and their redundancy in the machine's own controller",
			Command: "ipmitool sdr type 'Power Supply'", Interrupts: "nothing",
			Find:    slowed("power-brake", "is slowed down by the power brake"),
			Sources: []string{nvml, debug},
		},
		{
			Code: "GPU-004", Title: "a GPU has fewer PCIe lanes than it could",
			Reads:      "current and largest link width of each GPU and of the port above it, on bare metal",
			Meaning:    "copies between host and GPU are slower; the GPU or a riser has a bad contact",
			Fix:        "power the machine off, seat the board and its riser again, and compare again",
			Command:    "nvidia-smi --query-gpu=pci.bus_id,pcie.link.width.current,pcie.link.width.max --format=csv",
			Interrupts: "the node", Find: narrow,
			Sources: []string{"https://docs.kernel.org/admin-guide/abi-testing.html (current_link_width)", debug},
		},
		{
			Code: "GPU-010", Title: "the persistence daemon does not run",
			Reads:   "the unit nvidia-persistenced, where it is enabled",
			Meaning: "each first program initialises all GPUs again: seconds, and settings are lost",
			Fix:     "start it; its log says why it ended",
			Command: "systemctl restart nvidia-persistenced && systemctl status nvidia-persistenced", Interrupts: "nothing",
			Find:    noPersistence,
			Sources: []string{"https://docs.nvidia.com/deploy/driver-persistence/overview.html", "nvidia-persistenced(1)"},
		},
	}
}

func fabricChecks() []Check {
	return []Check{
		{
			Code: "FAB-001", Title: "the fabric manager is of another version than the driver",
			Reads:      "the version of its package and of the module that is loaded",
			Meaning:    "it refuses to run: CUDA fails with error 802 on machines with NVSwitches",
			Fix:        "install the fabric manager of exactly the driver's version",
			Interrupts: "programs on all GPUs, when it restarts", Find: otherFabricManager,
			Sources: []string{
				fabric, "https://github.com/NVIDIA/gpu-operator/issues/544",
				"https://github.com/NVIDIA/gpu-operator/issues/356",
			},
		},
		{
			Code: "FAB-004", Title: "the InfiniBand modules for NVLink's switches are missing",
			Reads:   "/sys/module, modules.dep of the running kernel",
			Meaning: "the fabric manager reaches no switch: CUDA fails with error 802, while nvidia-smi works",
			Fix:     "install the kernel's extra modules, and load mlx5_ib and ib_umad", Interrupts: "nothing",
			Find:    noInfiniband,
			Sources: []string{"https://github.com/NVIDIA/gpu-operator/issues/2781", fabric},
		},
		{
			Code: "FAB-002", Title: "the fabric manager does not run",
			Reads:      "the unit nvidia-fabricmanager, on machines whose switches are on the PCI bus; elsewhere only where it is enabled",
			Meaning:    "the GPUs are not joined: CUDA fails with error 802",
			Fix:        "start it; its log says why it ended",
			Command:    "systemctl enable --now nvidia-fabricmanager && systemctl status nvidia-fabricmanager",
			Interrupts: "nothing", Find: noFabricManager,
			Sources: []string{fabric, "https://github.com/NVIDIA/gpu-operator/issues/1595"},
		},
		{
			Code: "FAB-003", Title: "a GPU is not registered with the fabric",
			Reads:      "NVML: fabric state, ten minutes after the boot",
			Meaning:    "CUDA fails with error 802 on this GPU, while nvidia-smi works",
			Fix:        "restart the fabric manager; its log names the switch or GPU that fails",
			Command:    "systemctl restart nvidia-fabricmanager && tail -n 40 /var/log/fabricmanager.log",
			Interrupts: "programs on all GPUs", Find: notRegistered,
			Sources: []string{fabric, "https://github.com/NVIDIA/gpu-operator/issues/2781"},
		},
	}
}

// xidCode is the code of the check of all Xids.
const xidCode = "GPU-011"

func xidChecks() []Check {
	return []Check{{
		Code: xidCode, Title: "the driver reported an Xid",
		Reads:   "the kernel log since the module was last loaded, and what NVML says of the GPU now",
		Meaning: "an error of this GPU ended programs on it; one of a program's own is a note",
		Fix:     "what NVIDIA's catalogue says of the number", Interrupts: reset, Find: xids,
		Sources: []string{
			faults.XidCatalogue, "https://github.com/leptonai/gpud (catalog_generated.go)",
			"https://github.com/NVIDIA/open-gpu-kernel-modules/discussions/1496",
		},
	}}
}

func migChecks() []Check {
	return []Check{
		{
			Code: "MIG-003", Title: "a GPU has other partitions than node.toml asks for",
			Reads:   "MIG mode and instances, as the driver says, and [mig] in node.toml",
			Meaning: "pods find other partitions on this node than its labels and its operator promise",
			Fix:     "make the partitions that node.toml asks for, or change [mig] there", Command: trouble.Command("apply mig"), Interrupts: "programs on the partitions that change; apply asks before",
			Sources: []string{"https://docs.nvidia.com/datacenter/tesla/mig-user-guide/", "https://github.com/NVIDIA/mig-parted (nvidia-mig-parted assert)"},
			Find:    otherPartitions,
		},
		{
			Code: "MIG-001", Title: "a GPU in MIG mode has no partition",
			Reads:   "MIG mode and instances, as the driver says",
			Meaning: "no pod can use the GPU: in MIG mode only partitions can be used",
			Fix:     "partition it ([mig] in node.toml, then " + trouble.Command("apply") + "), or switch MIG mode off", Interrupts: "resets the GPU where MIG mode is switched off",
			Sources: []string{"https://docs.nvidia.com/datacenter/tesla/mig-user-guide/", "https://github.com/NVIDIA/k8s-device-plugin/issues/225"},
			Find:    noPartition,
		},
		{
			Code: "MIG-002", Title: "a change of MIG mode waits for a reset",
			Reads:   "current and pending MIG mode, as the driver says, and who has the GPUs open",
			Meaning: "the GPU stays in the old mode, and layouts for the new one cannot be made",
			Fix:     "stop what holds the GPU, then reset it; in a virtual machine reboot", Interrupts: "everything that runs on the GPU",
			Sources: []string{"https://docs.nvidia.com/datacenter/tesla/mig-user-guide/", "https://github.com/NVIDIA/gpu-operator/issues/1606"},
			Find:    waitsForReset,
		},
	}
}

func (m *Machine) answering() (list []host.GPU) {
	d := m.Facts().Driver
	if d == nil {
		return nil
	}
	for _, g := range d.GPUs {
		if g.Lost == "" {
			list = append(list, g)
		}
	}
	return list
}

// otherPartitions plans the stage of [mig] and touches nothing. Where another program partitions the GPUs, the stage wants nothing.
func otherPartitions(m *Machine) (list []Finding) {
	if !m.spec.MIG.Asked() || m.Facts().Driver == nil {
		return nil
	}
	f, err := facts.Gather(m.ctx, m.View, mig.Stage.Needs(m.spec))
	if err != nil {
		return nil // Facts has noted it
	}
	wants, err := mig.Stage.Wants(m.spec, f)
	if err != nil {
		m.cannotRead("the partitions that node.toml asks for", err)
	}
	for _, w := range wants {
		if w.Ref().Kind != "mig" {
			continue
		}
		found, err := w.Look(m.ctx, m.View)
		if err != nil {
			continue // GPU-003 names a GPU that does not answer
		}
		if want, err := w.To(found); err == nil && want != found {
			list = append(list, Finding{Object: w.Ref().Name, What: fmt.Sprintf("GPU %s has MIG %s, and node.toml asks for %s", w.Ref().Name, found, want)})
		}
	}
	return list
}

func noPartition(m *Machine) (list []Finding) {
	if m.Facts().DynamicMIG != "" {
		return nil // pods have them made
	}
	for _, g := range m.answering() {
		if g.Mode && len(g.Instances) == 0 {
			list = append(list, Finding{
				Object: g.Address, What: fmt.Sprintf("GPU %d (%s) is in MIG mode and has no instance", g.Index, g.Address),
				Command: fmt.Sprintf("sudo nvidia-smi -i %s -mig 0", g.Address),
			})
		}
	}
	return list
}

func waitsForReset(m *Machine) (list []Finding) {
	modes := map[bool]string{true: "on", false: "off"}
	for _, g := range m.answering() {
		if g.Mode == g.Pending {
			continue
		}
		what := fmt.Sprintf("GPU %d (%s) has MIG mode %s, and %s after a reset", g.Index, g.Address, modes[g.Mode], modes[g.Pending])
		if holders, err := devices.Clients(m.ctx, m.View); err == nil && len(holders) > 0 {
			what += "; " + strings.Join(trouble.Few(holders, 3), ", ")
		}
		list = append(list, Finding{Object: g.Address, What: what, Command: resetCommand(g.Address)})
	}
	return list
}
