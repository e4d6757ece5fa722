// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// besides says what must be there before the driver where network cards or storage are to reach the GPUs' memory by
// themselves. gpuadm installs no network drivers, so it says so and does not refuse.
//
// Sources. nvidia-peermem and OFED: https://github.com/NVIDIA/open-gpu-kernel-modules
// kernel-open/nvidia-peermem/nvidia-peermem.Kbuild; dma-buf instead of it: https://github.com/NVIDIA/cloud-native-docs
// gpu-operator/gpu-operator-rdma.rst; DOCA or OFED before GPUDirect Storage:
// https://docs.nvidia.com/gpudirect-storage/release-notes/mlnx-ofed-doca-and-file-system-requirements.html and
// https://docs.nvidia.com/gpudirect-storage/troubleshooting-guide/nvme-and-nvme-of-troubleshooting.html.
func besides(v host.View, d spec.Driver, c Choice) (notes []string) {
	if c.Source == SourceNone || !d.Peermem && !d.GDS {
		return nil
	}
	there := ofed(v)
	switch {
	case d.Peermem && there:
		notes = append(notes, "nvidia-peermem is built against the DOCA or OFED that is installed: build the driver's modules again after an update of it; dma-buf, which NVIDIA recommends instead, needs neither")
	case d.Peermem:
		notes = append(notes, "nvidia-peermem is built against DOCA or OFED only if that is installed before the driver's modules are built, and none is here; dma-buf, which NVIDIA recommends instead, needs neither")
	}
	if d.GDS && !there {
		notes = append(notes, "GPUDirect Storage reaches NVMe, NVMe over Fabrics and NFS over RDMA through DOCA or OFED, which has to be installed before nvidia-fs, and none is here")
	}
	if card := unserved(v); d.Peermem && card != "" {
		notes = append(notes, "no network card can reach the GPUs' memory: InfiniBand card "+card+" is on the bus, and the module mlx5_ib is not loaded; it is in the kernel's packages or in DOCA or OFED")
	}
	return notes
}

// ofed says whether the kernel sources of DOCA or OFED are where the driver's build looks for them.
func ofed(v host.View) bool {
	return slices.ContainsFunc([]string{"/usr/src/ofa_kernel", "/var/lib/dkms/mlnx-ofed-kernel"}, func(dir string) bool {
		_, err := v.Stat(dir)
		return err == nil
	})
}

// unserved returns the address of an InfiniBand card of Mellanox or NVIDIA that no module serves, "" if there is none. The
// PCI class of InfiniBand controllers is 0207; the vendor 15b3: https://pci-ids.ucw.cz.
func unserved(v host.View) string {
	if _, err := v.Stat("/sys/module/mlx5_ib"); err == nil || !v.Live() {
		return ""
	}
	const bus = "/sys/bus/pci/devices/"
	names, _ := v.ReadDir(bus) // none where there is no PCI bus
	for _, address := range names {
		vendor, _ := v.ReadFile(bus + address + "/vendor") // a card that is gone by now has none
		class, _ := v.ReadFile(bus + address + "/class")
		if strings.HasPrefix(string(vendor), "0x15b3") && strings.HasPrefix(string(class), "0x0207") {
			return address
		}
	}
	return ""
}
