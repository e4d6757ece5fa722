// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/host"
)

func resetCommand(address string) string {
	return "sudo nvidia-smi --gpu-reset -i " + address
}

// gpuNotListed leaves out GPUs that another kernel driver holds: vfio, for virtual machines, or
// nouveau, which has a check of its own.
func gpuNotListed(m *Machine) (found []Finding) {
	listed, ok := m.NVML()
	if !ok {
		return nil
	}

	for _, device := range m.GPUs() {
		_, isListed := listed[device.Address]
		heldByOther := device.Driver != "" && device.Driver != "nvidia"
		if isListed || heldByOther {
			continue
		}

		what := fmt.Sprintf("GPU %s (%s) is on the PCI bus, and the driver does not list it", device.Address, device.Model)
		if line := lastLineWith(m.sinceLoad(), "NVRM: The NVIDIA GPU "+device.Address); line != "" {
			what += ": " + line
		}
		found = append(found, Finding{Object: device.Address, What: what})
	}

	return found
}

// ofGPUs returns a check with one finding for each faulty GPU that the driver answers for. describe
// returns "" for a GPU without the fault; command may be nil.
func ofGPUs(describe func(host.GPU) string, command func(address string) string) func(*Machine) []Finding {
	return func(m *Machine) (found []Finding) {
		gpus, _ := m.NVML()
		for address, gpu := range gpus {
			fault := describe(gpu)
			if fault == "" {
				continue
			}

			finding := Finding{Object: address, What: "GPU " + address + " " + fault}
			if command != nil {
				finding.Command = command(address)
			}
			found = append(found, finding)
		}

		return found
	}
}

// when describes each GPU that has the fault with one text.
func when(isFaulty func(host.GPU) bool, what string) func(host.GPU) string {
	return func(gpu host.GPU) string {
		if !isFaulty(gpu) {
			return ""
		}
		return what
	}
}

func lost(gpu host.GPU) string {
	if gpu.Lost == "" {
		return ""
	}
	return "does not answer: " + gpu.Lost
}

// faultyLinks returns the NVLinks of a GPU that are down, and up on another GPU of the same model.
// A link that is down on all of them may not exist: a board may have more links than its bridges,
// and NVML may list more than the board has:
// https://github.com/Azure/azurehpc-health-checks/issues/162; pkg/gpu/mocknvml in
// https://github.com/NVIDIA/k8s-test-infra.
func (m *Machine) faultyLinks(gpu host.GPU) (links []int) {
	for _, link := range gpu.LinksDown {
		isUp := func(other host.GPU) bool {
			return other.Name == gpu.Name && !slices.Contains(other.LinksDown, link)
		}
		if slices.ContainsFunc(m.answering(), isUp) {
			links = append(links, link)
		}
	}
	return links
}

// linksDown leaves out GPUs that Xids or a broken peer explain: edges.go.
func linksDown(m *Machine) []Finding {
	describe := func(gpu host.GPU) string {
		links := m.faultyLinks(gpu)
		if len(links) == 0 {
			return ""
		}
		return fmt.Sprintf("has NVLinks that carry nothing: %v", links)
	}
	return ofGPUs(describe, nil)(m)
}

// waitingECC finds GPUs whose ECC mode changes with the next reset.
func waitingECC(m *Machine) []Finding {
	describe := func(gpu host.GPU) string {
		if gpu.ECCWaits == "" {
			return ""
		}
		return fmt.Sprintf("has ECC %s, and %s after its next reset", gpu.ECC, gpu.ECCWaits)
	}
	return ofGPUs(describe, resetCommand)(m)
}

// nearlyTooHot is how many degrees below the limit a GPU counts as nearly too hot.
const nearlyTooHot = 3

// hot finds GPUs that slow themselves down for heat, and notes those that soon will.
func hot(m *Machine) []Finding {
	found := slowed("heat", "is slowed down by its own protection from heat")(m)
	gpus, _ := m.NVML()
	for address, gpu := range gpus {
		if gpu.SlowsAt == 0 || gpu.Celsius < gpu.SlowsAt-nearlyTooHot || gpu.Slowed == "heat" {
			continue
		}
		found = append(found, Finding{
			Object: address,
			Part:   "soon",
			What:   fmt.Sprintf("GPU %s has %d °C, and slows itself down at %d", address, gpu.Celsius, gpu.SlowsAt),
			Note:   true,
		})
	}

	return found
}

// withoutECC finds GPUs with ECC off where others of the same model have it on. Only an operator
// knows which of the two is wanted.
func withoutECC(m *Machine) []Finding {
	describe := func(gpu host.GPU) string {
		hasECC := func(other host.GPU) bool {
			return other.Name == gpu.Name && other.ECC == "on"
		}
		if gpu.ECC != "off" || !slices.ContainsFunc(m.answering(), hasECC) {
			return ""
		}
		return "has ECC off, and others of its kind have it on"
	}

	command := func(address string) string {
		return "sudo nvidia-smi -i " + address + " --ecc-config=1"
	}

	return append(ofGPUs(describe, command)(m), waitingECC(m)...)
}

func limited(gpu host.GPU) string {
	if gpu.PowerLimit == 0 || gpu.PowerLimit >= gpu.PowerUsual*9/10 {
		return ""
	}
	return fmt.Sprintf("is limited to %d W of its usual %d", gpu.PowerLimit, gpu.PowerUsual)
}

func uncorrected(gpu host.GPU) string {
	if gpu.Uncorrected == 0 {
		return ""
	}
	return fmt.Sprintf("had uncorrected memory errors since the driver started it: %d", gpu.Uncorrected)
}

// unlicensed finds GPUs of a vGPU guest without a licence.
func unlicensed(m *Machine) []Finding {
	if m.Basics().VGPU == nil {
		return nil // of a whole GPU only the guest driver's daemon shows whether it needs a licence
	}
	return ofGPUs(host.GPU.Unlicensed, nil)(m)
}

func slowed(reason, what string) func(*Machine) []Finding {
	isSlowed := func(gpu host.GPU) bool { return gpu.Slowed == reason }
	return ofGPUs(when(isSlowed, what), nil)
}

// notPersistent notes that neither the daemon nor a setting keeps the GPUs initialised. systemctl
// enables neither a masked unit nor a unit that is not installed.
func (m *Machine) notPersistent(daemon host.Unit) []Finding {
	gpus := m.answering()
	isPersistent := func(gpu host.GPU) bool { return gpu.Persistent }
	if len(gpus) == 0 || !m.ownDriver() || slices.ContainsFunc(gpus, isPersistent) {
		return nil
	}

	on := "sudo systemctl enable --now nvidia-persistenced"
	if daemon.Load != "loaded" {
		on = "sudo nvidia-smi --persistence-mode=1 (until the next boot)"
	}
	return []Finding{{
		Part: "off",
		What: "persistence is off, so that each first program initialises all GPUs again: " + on,
		Note: true,
	}}
}

func noPersistence(m *Machine) []Finding {
	u, ok := m.Unit(drivers.PersistencedUnit)
	if !ok || !m.loaded() || u.Active == "active" || u.Active == "activating" {
		return nil
	}
	if u.Enabled != "enabled" {
		return m.notPersistent(u)
	}
	return []Finding{{What: drivers.PersistencedUnit + " is enabled and " + u.Active}}
}
