// SPDX-License-Identifier: Apache-2.0

package facts

import (
	_ "embed"
	"regexp"
	"slices"
	"strings"
)

// model returns the name of a known device, "" for others. Names say what tells them apart for a
// user: the product, its form where there are several, the memory.
func model(device, subsystem string) string {
	for _, key := range [...]string{device + " " + subsystem, device + " *"} {
		if _, after, ok := strings.Cut(models, "\n"+key+" "); ok {
			name, _, _ := strings.Cut(after, "\n")
			return name
		}
	}
	return ""
}

// models is the table of data-centre GPUs and of the NVSwitches a host sees: device id, subsystem
// or *, name.
//
//go:embed models.txt
var models string

// gpuModels are the GPUs of known models, as the PCI bus would show them.
func gpuModels() (list []PCI) {
	for row := range strings.Lines(models) {
		words := strings.SplitN(strings.TrimSpace(row), " ", 3)
		if words[0] != "#" && !strings.HasPrefix(words[2], "NVSwitch") {
			list = append(list, PCI{Vendor: "10de", Device: words[0], Class: "030200", Model: words[2]})
		}
	}
	return list
}

// Named returns a GPU of a known model by its device id, 1eb8, or by its name, T4 or "A100 PCIe
// 80GB".
func Named(name string) (PCI, bool) {
	plain := strings.NewReplacer("-", " ", "0x", "").Replace(strings.ToLower(name))
	plain = strings.TrimPrefix(plain, "nvidia ")
	for _, g := range gpuModels() {
		if plain == g.Device || plain == strings.ToLower(strings.ReplaceAll(g.Model, "-", " ")) {
			return g, true
		}
	}
	return PCI{}, false
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
// Sources: https://docs.nvidia.com/dccpu/grace-perf-tuning-guide/ and
// https://docs.nvidia.com/dgx/dgx-spark/hardware.html.
func OnArm(model string) bool { return regexp.MustCompile(`^G[BH]\d`).MatchString(model) }
