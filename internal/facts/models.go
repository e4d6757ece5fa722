// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/pci"
)

// model returns the name of a known device, "" for others. Names say what tells them apart for a user: the product, its
// form where there are several, the memory.
func model(device, subsystem string) string {
	for _, key := range [...]string{device + " " + subsystem, device + " *"} {
		if _, after, ok := strings.Cut(models, "\n"+key+" "); ok {
			name, _, _ := strings.Cut(after, "\n")
			return name
		}
	}
	return ""
}

// models is the table of data-centre GPUs and of the NVSwitches a host sees: device id, subsystem or *, name.
//
// Ids: the table of supported GPUs in the README of https://github.com/NVIDIA/open-gpu-kernel-modules (March 2026,
// 595.45.04) and the supported-devices lists of https://github.com/awslabs/amazon-eks-ami (July 2026); older ones and
// NVSwitches: the PCI ID Repository, https://pci-ids.ucw.cz. Memory: NVIDIA's product names and MIG user guide.
// From Blackwell on NVSwitches are not PCI devices of the host.
const models = `
15f7 * P100 PCIe 12GB
15f8 * P100 PCIe 16GB
15f9 * P100 16GB
1ac2 * NVSwitch (V100)
1af1 * NVSwitch (A100)
1b38 * P40
1bb3 * P4
1db1 * V100 16GB
1db4 * V100 PCIe 16GB
1db5 * V100 32GB
1db6 * V100 PCIe 32GB
1db8 * V100 32GB
1df6 * V100S PCIe 32GB
1eb8 * T4
1fb0 10de:1485 DGX Display
20b0 * A100 40GB
20b2 * A100 80GB
20b3 * A100 64GB
20b5 * A100 PCIe 80GB
20b7 * A30
20bd * A800 40GB
20f1 * A100 PCIe 40GB
20f3 * A800 80GB
20f5 * A800 PCIe 80GB
20f6 * A800 PCIe 40GB
20fd * AX800
2235 * A40
2236 * A10
2237 * A10G
2238 * A10M
22a3 * NVSwitch (H100)
230e * H20 NVL16
2321 * H100 NVL 94GB
2322 * H800 PCIe 80GB
2324 * H800 80GB
2329 * H20 96GB
232c * H20-3e 141GB
2330 * H100 80GB
2331 * H100 PCIe 80GB
2335 * H200 141GB
2336 * H100
2339 * H100
233a * H800 NVL 94GB
233b * H200 NVL 141GB
2342 10de:1809 GH200 480GB
2342 10de:16eb GH200 120GB
2342 10de:1805 GH200 120GB
2342 * GH200
2348 * GH200 144GB
25b6 10de:14a9 A16
25b6 10de:157e A2
25b6 * A2/A16
26b1 * RTX 6000 Ada
26b2 * RTX 5000 Ada
26b5 * L40
26b9 * L40S
26ba * L20
27b6 * L2
27b8 * L4
2901 * B200
2941 * GB200
2bb1 * RTX PRO 6000
2bb3 * RTX PRO 5000
2bb4 * RTX PRO 6000 Max-Q
2bb5 * RTX PRO 6000 Server
2c31 * RTX PRO 4500
2c3a * RTX PRO 4500 Server
2e12 * GB10
3182 * B300
31c2 * GB300
31c3 * GB300
`

// Named returns a GPU of a known model as the PCI bus would show it: by its device id, 1eb8, or by its name, T4 or "A100 PCIe 80GB".
func Named(name string) (PCI, bool) {
	plain := strings.NewReplacer("-", " ", "0x", "").Replace(strings.ToLower(name))
	plain = strings.TrimPrefix(plain, "nvidia ")
	for row := range strings.Lines(models) {
		words := strings.SplitN(strings.TrimSpace(row), " ", 3)
		if len(words) < 3 || strings.HasPrefix(words[2], "NVSwitch") {
			continue
		}
		if plain == words[0] || plain == strings.ToLower(strings.ReplaceAll(words[2], "-", " ")) {
			return PCI{Vendor: "10de", Device: words[0], Class: "030200", Model: words[2]}, true
		}
	}
	return PCI{}, false
}

// pci lists the NVIDIA functions on the bus, in bus order. Not nil: the bus was read.
func (l *look) pci() []PCI {
	found := []PCI{}
	all, err := pci.Functions(l.v)
	if err != nil {
		l.fail("list", pci.Bus, err)
	}
	for _, p := range all {
		if p.Vendor == pci.Nvidia {
			p.Model = model(p.Device, p.Subsystem)
			found = append(found, p)
		}
	}
	return found
}
