// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
)

// fabric names what connects the GPUs over NVLink; "" if the machine manages none of it.
func (m *Machine) fabric() string {
	kind, _ := m.joined.read(m, "the catalog of GPUs", func() (string, error) {
		return drivers.FabricOf(drivers.Load(), m.Basics()), nil
	})
	return kind
}

func otherFabricManager(m *Machine) []Finding {
	version, all := m.Basics().Modules.Version, m.Packages()
	if version == "" || m.fabric() == "" || m.fabric() == drivers.FabricRack || !m.ownDriver() {
		return nil
	}

	for _, name := range slices.Sorted(maps.Keys(all.packages)) {
		manager := all.packages[name]
		found := driverVersion().FindStringSubmatch(manager.Version)
		if !isFabricManager(name) || !manager.Installed() || found == nil || found[1] == version {
			continue
		}
		return []Finding{{
			Object:  name,
			What:    fmt.Sprintf("%s is %s, and the module nvidia that is loaded is %s", name, found[1], version),
			Command: fmt.Sprintf(all.commands().exact, name, version),
		}}
	}

	return nil
}

func isFabricManager(name string) bool {
	if strings.Contains(name, "dev") {
		return false
	}
	return strings.HasPrefix(name, "nvidia-fabricmanager") || name == "nvidia-fabric-manager"
}

func noInfiniband(m *Machine) []Finding {
	k, ok := m.running()
	hasAll := len(k.Infiniband) == len(facts.InfinibandModules())
	if !ok || !m.loaded() || m.fabric() != drivers.FabricNVLink5 || hasAll {
		return nil
	}
	if u, known := m.Unit(drivers.FabricManagerUnit); !known || u.Enabled != "enabled" {
		return nil // a virtual machine without the switches: another one manages them
	}

	command := "sudo modprobe -a mlx5_ib ib_umad"
	if m.Basics().OS.ID == "ubuntu" {
		command = "sudo apt-get install linux-modules-extra-" + k.Kernel + " && " + command
	}
	modules := strings.Join(facts.InfinibandModules(), " and ")
	return []Finding{{
		What:    fmt.Sprintf("kernel %s has not all of %s", k.Kernel, modules),
		Command: command,
	}}
}

func noFabricManager(m *Machine) []Finding {
	kind := m.fabric()
	if !m.loaded() || !m.ownDriver() || kind == "" || kind == drivers.FabricRack {
		return nil
	}
	u, ok := m.Unit(drivers.FabricManagerUnit)
	byOther := kind == drivers.FabricNVLink5 && u.Enabled != "enabled"
	if !ok || u.Active == "active" || u.Active == "activating" || byOther {
		return nil
	}
	switch u.Load {
	case "not-found":
		return []Finding{m.lacksFabricManager()}
	case "masked":
		return []Finding{maskedUnit(drivers.FabricManagerUnit)}
	}

	return []Finding{{What: drivers.FabricManagerUnit + " is " + u.Active + " (" + u.Enabled + ")"}}
}

// lacksFabricManager is the finding of a machine without a fabric manager: its version must be the
// driver's.
func (m *Machine) lacksFabricManager() Finding {
	const missing = "the machine has NVSwitches, and no fabric manager is installed"
	const other = "it needs a package of the driver's version: with [driver] in node.toml, apply is the fix"
	version, all := m.Basics().Modules.Version, m.Packages()
	isInstalled := func(name string) bool { return all.packages[name].Installed() }
	name := drivers.ManagerPackage(drivers.Load(), version, isInstalled)
	if name == "" {
		return Finding{
			What:    missing,
			Other:   other,
			Fix:     "install the fabric manager of exactly the driver's version, " + version + ", from where the driver is",
			Command: planDriver(),
		}
	}

	install := fmt.Sprintf(all.commands().exact, name, version)
	return Finding{
		What:    missing,
		Other:   other,
		Fix:     "install " + name + " of exactly the driver's version, " + version + ", and start it",
		Command: install + " && sudo systemctl enable --now " + strings.TrimSuffix(drivers.FabricManagerUnit, ".service"),
	}
}

// nothingToManage finds a fabric manager on a machine without switches: it ends at once. Images for
// many kinds of machines have it so.
// Sources: https://github.com/NVIDIA/gpu-operator/issues/610;
// https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/.
func nothingToManage(m *Machine) []Finding {
	u, ok := m.Unit(drivers.FabricManagerUnit)
	if !ok || !m.loaded() || m.fabric() != "" || u.Enabled != "enabled" || u.Active != "failed" {
		return nil
	}
	return []Finding{{
		What: drivers.FabricManagerUnit + " has failed, and no switch that it could manage is on the PCI bus: sudo systemctl disable " + drivers.FabricManagerUnit,
		Note: true,
	}}
}

// notRegistered leaves out GPUs in MIG mode, which do not register with the fabric, a machine that
// has just booted, and GPUs that wait for the owner of the NVSwitches' partitions.
func notRegistered(m *Machine) []Finding {
	config, _ := m.text(drivers.FabricManagerConfig)
	waitsForOwner := drivers.PartitionsOwned([]byte(config)) != ""

	u, ok := m.Unit(drivers.FabricManagerUnit)
	mayStillRegister := !ok || u.Uptime < 10*time.Minute

	describe := func(gpu host.GPU) string {
		fabric := gpu.Fabric
		if gpu.Lost != "" || gpu.Mode || fabric.State == "" {
			return ""
		}
		completed := fabric.State == "completed"
		switch {
		case fabric.Faults != "":
			return "is registered with the fabric, and " + fabric.Faults
		case !completed && (mayStillRegister || waitsForOwner):
			return ""
		case fabric.Status != "":
			return "could not be registered with the fabric: " + fabric.Status
		case completed:
			return ""
		}

		return "is not registered with the fabric: " + fabric.State
	}

	return ofGPUs(describe, nil)(m)
}
