// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/gputable"
)

// model returns the name of a known device, "" for others. Names say what tells them apart for a
// user: the product, its form where there are several, the memory.
func model(device, subsystem string) string {
	known := gputable.Of(device)
	if known == nil {
		return ""
	}
	return known.NameOf(subsystem)
}

// gpuModels are the GPUs of known models, as the PCI bus would show them.
func gpuModels() (list []PCI) {
	for _, known := range gputable.All() {
		if known.Switch() {
			continue
		}

		var names []string
		for _, board := range known.Boards {
			names = append(names, board.Name)
		}
		if known.Name != "" {
			names = append(names, known.Name)
		}
		for _, name := range names {
			list = append(list, PCI{
				Vendor: "10de",
				Device: known.ID,
				Class:  "030200",
				Model:  name,
			})
		}
	}
	return list
}

// Named returns a GPU of a known model by its name, T4 or "A100 PCIe 80GB", or by its device id,
// 1eb8, which the lists of NVIDIA's drivers may have alone.
func Named(name string) (PCI, bool) {
	plain := strings.NewReplacer("-", " ", ":0x", ":").Replace(strings.ToLower(name))
	plain = strings.TrimPrefix(plain, "0x") // of an id; A100X has these letters, too
	plain = strings.TrimPrefix(plain, "nvidia ")
	plain = strings.TrimPrefix(plain, "tesla ") // as nvidia-smi calls GPUs up to Turing
	for _, g := range gpuModels() {
		if plain == g.Device || plain == strings.ToLower(strings.ReplaceAll(g.Model, "-", " ")) {
			return g, true
		}
	}

	return listed(plain)
}

// listed returns a GPU without a name of its own in the table by its device id: 2bb9, 2bb910de or
// 10de:2bb9.
func listed(name string) (PCI, bool) {
	id := strings.TrimSuffix(strings.TrimPrefix(name, "10de:"), "10de")
	if len(id) != 4 {
		return PCI{}, false
	}
	gpu := PCI{Vendor: "10de", Device: id, Class: "030200"}
	if known := gputable.Of(id); known != nil && !known.Switch() {
		gpu.Model = known.Product
		return gpu, true
	}
	served, isListed := gputable.ServedBy(id)
	gpu.Model = strings.TrimPrefix(served.Name, "NVIDIA ")
	return gpu, isListed
}

// Models are the names of all known models, as --gpu takes them: V100-16GB.
func Models() (names []string) {
	for _, g := range gpuModels() {
		names = append(names, strings.ReplaceAll(g.Model, " ", "-"))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// OnArm says whether GPUs of a model are on one board with an Arm processor of NVIDIA's: GH200,
// GB200, GB300, GB10.
func OnArm(model string) bool {
	for _, known := range gputable.All() {
		if known.Arm && strings.HasPrefix(model, known.Product) {
			return true
		}
	}
	return false
}
