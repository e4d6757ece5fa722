// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// otherOwner is the owner that a spec names with owner = "other".
const otherOwner = facts.OtherOwner

// Other describes a machine's driver, whatever a spec asks for.
type Other struct {
	Owner    string // the driver's owner, if it is not gpuadm; "" if no sign names one
	TakeOver string // how gpuadm gets to manage it
	Rack     bool   // GPUs are joined to those of other machines: FabricRack
}

// Other says whether another owner installs the driver, and whether the GPUs are part of a rack.
func (d Driver) Other(f facts.Facts) Other {
	catalog := Load()
	owner := catalog.owner(hardware.MachineOf(f, f.Cloud.Type), spec.Driver{})

	return Other{
		Owner:    owner,
		TakeOver: takeOver(owner),
		Rack:     FabricOf(catalog, f) == FabricRack,
	}
}

// owner names the driver's owner; "" if that is gpuadm.
func (c Catalog) owner(m hardware.Machine, d spec.Driver) string {
	if m.Owner != "" {
		return m.Owner
	}

	if title := platform.SystemOf(m.ID).Driver.Title; title != "" {
		return title
	}
	for _, row := range c.Owners {
		if row.owns(m) {
			return row.Owner
		}
	}

	if d.Owner == "other" {
		return otherOwner + `: the spec says owner = "other"`
	}
	return ""
}

// owns says whether the row is for a machine's operating system.
func (r ownerRow) owns(m hardware.Machine) bool {
	hasName := r.Name != "" && strings.Contains(m.Name, r.Name)
	return hasName || slices.Contains(r.IDs, m.ID)
}

// takeOver says how gpuadm gets to manage a driver that has another owner. A GPUCluster installs no
// driver: NVIDIADriver resources install it, and one of them may be the default for all nodes.
// Source: https://github.com/NVIDIA/gpu-operator config/crd/bases;
// https://github.com/NVIDIA/cloud-native-docs gpu-operator/gpu-driver-configuration.rst and
// dra-intro-install.rst.
func takeOver(owner string) string {
	for _, n := range platform.Nodes() {
		if n.Driver.TakeOver != "" && strings.HasPrefix(owner+" (", n.Driver.Title+" (") {
			return n.Driver.TakeOver
		}
	}

	switch {
	case strings.HasPrefix(owner, facts.GPUOperator):
		return `or take it over: have the operator bring no driver to this node. With a ClusterPolicy that manages the driver, set driver.enabled=false; with NVIDIADriver resources (a GPUCluster has only these), delete the one for this node, the default one too, or keep its nodeSelector off this node. Wait until the driver container has left, then write owner = "gpuadm" in [driver]`
	case strings.HasPrefix(owner, facts.OSTree):
		return "gpuadm cannot take it over here: install the driver in the image (rpm-ostree install, or a new image)"
	case strings.HasPrefix(owner, facts.CIQDriver):
		return "or have CIQ's packages bring another branch: dnf install nvidia-dc-driver580 kmod-nvidia-dc-open580 --allowerasing. To take it over, remove them and reboot"
	case strings.HasPrefix(owner, otherOwner):
		return `or take it over: remove what its owner installed, and reboot; without owner = "other" in [driver], gpuadm then installs its own`
	}

	return "gpuadm cannot take it over on this system: have its owner install another version"
}
