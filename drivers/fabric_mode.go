// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"

	"github.com/gpuadm/gpuadm/internal/facts"
)

// FabricManagerConfig is the fabric manager's own file, which its package brings.
// Sources: NVIDIA's Fabric Manager User Guide, "The Fabric Manager Startup Options";
// https://github.com/siderolabs/extensions nvidia-gpu/nvidia-fabricmanager.
const FabricManagerConfig = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"

// PartitionsOwned names the mode of a fabric manager's configuration in which another program joins
// the GPUs over NVSwitch, a partition at a time; "" in mode 0, in which the fabric
// manager joins all.
// Sources: the comments of NVIDIA's fabricmanager.cfg, as in CumulusNetworks/docs,
// content/cumulus-netq-48/NVLink4; "Fabric Manager partitioning" in the documentation of
// https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu.
func PartitionsOwned(config []byte) string {
	mode := configValues(config)["FABRIC_MODE"]
	named := "FABRIC_MODE=" + mode
	switch mode {
	case "", "0":
		return ""
	case "1":
		return named + " (shared NVSwitch)"
	case "2":
		return named + " (vGPU multitenancy)"
	}

	return named
}

// partitionsOwned is PartitionsOwned of this machine.
func partitionsOwned(f facts.Facts) string {
	return PartitionsOwned(f.Files[FabricManagerConfig])
}

// fabricNotes says that another program owns the partitions of the NVSwitches.
func fabricNotes(fabric, manager string, f facts.Facts) []string {
	mode := partitionsOwned(f)
	manages := fabric == FabricSwitch || fabric == FabricNVLink5
	if mode == "" || !manages || manager == "off" {
		return nil
	}
	const text = "%s has %s: another program, such as NVIDIA's DRA driver or a hypervisor's, joins GPUs over NVLink, " +
		"a partition at a time; gpuadm runs the fabric manager, and does not wait for that program"
	return []string{fmt.Sprintf(text, FabricManagerConfig, mode)}
}
