// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/gputable"
	"github.com/gpuadm/gpuadm/internal/host"
)

// mib is NVML's unit of profile memory, in bytes.
const mib = 1 << 20

// model returns a GPU as it comes from the factory. Figures are those of NVIDIA's MIG user guide
// and of dumps that users published (nvidia-smi mig -lgip, -lgipp); memory of B200's larger
// profiles is assumed.
func model(name string) (host.GPU, bool) {
	switch name {
	case "T4":
		return board("1eb8"), true
	case "L40S":
		return board("26b9"), true
	case "A30":
		return parted(board("20b7"), []host.Profile{
			profile(14, 0, "1g.6gb", 1, 4, 5952, 1, 0, 1, 2, 3),
			profile(21, 7, "1g.6gb+me", 1, 1, 5952, 1, 0, 1, 2, 3),
			profile(5, 1, "2g.12gb", 2, 2, 11968, 2, 0, 2),
			profile(6, 8, "2g.12gb+me", 2, 1, 11968, 2, 0, 2),
			profile(0, 3, "4g.24gb", 4, 1, 24064, 4, 0),
		}), true
	case "A100-40":
		return parted(board("20b0"),
			sevenths([4]string{"5", "10", "20", "40"}, [4]uint64{4864, 9856, 19968, 40192})), true
	case "A100-80":
		return parted(board("20b2"),
			sevenths([4]string{"10", "20", "40", "80"}, [4]uint64{9856, 19968, 40192, 80384})), true
	case "H100-80":
		return parted(board("2330"),
			sevenths([4]string{"10", "20", "40", "80"}, [4]uint64{9984, 20096, 40448, 81152})), true
	case "H200":
		return parted(board("2335"),
			sevenths([4]string{"18", "35", "71", "141"}, [4]uint64{16384, 33024, 71168, 143104})), true
	case "B200":
		return parted(board("2901"),
			sevenths([4]string{"23", "45", "90", "180"}, [4]uint64{20992, 45312, 91136, 182528})), true
	case "RTX-PRO-6000":
		return parted(board("2bb5"), twelfths()), true
	}
	return host.GPU{}, false
}

// board is a GPU by its PCI device id, as internal/gputable has recorded one.
func board(id string) host.GPU {
	known := gputable.Of(id)
	recorded := known.Recorded
	memory, err := strconv.ParseUint(recorded.MiB, 10, 64)
	if err != nil {
		panic("internal error: no board of " + id + " is recorded: " + err.Error()) // a case of model
	}

	_, sub, _ := strings.Cut(recorded.Subsystem, ":")
	g := host.GPU{
		Name:    recorded.Name,
		Arch:    known.NVMLArch(),
		Compute: recorded.Capability,
		Memory:  memory * mib,
		Device:  known.Device(),
		Sub:     "0x" + strings.ToUpper(sub) + "10DE",
		ECC:     "on",
	}
	if g.Arch == "hopper" || g.Compute == "10.0" {
		g.Fabric.State = "completed"
	}
	return g
}

// parted makes a GPU one that can be partitioned.
func parted(g host.GPU, profiles []host.Profile) host.GPU {
	slices.SortFunc(profiles, func(a, b host.Profile) int { return a.Enum - b.Enum }) // as NVML lists them
	g.MIG = true
	g.Profiles = profiles
	return g
}

// profile is a row of the table: id, NVML's enumeration, compute slices, instances, MiB, memory
// slices, where it may start.
func profile(id, enum int, name string, compute, most int, memory uint64, size int, starts ...int) host.Profile {
	p := host.Profile{
		ID:      id,
		Enum:    enum,
		Name:    name,
		Slices:  compute,
		Max:     most,
		Memory:  memory * mib,
		Compute: host.ComputeProfiles(compute),
	}
	for _, start := range starts {
		p.Places = append(p.Places, host.Span{Start: start, Size: size})
	}
	return p
}

// sevenths is the grid of all GPUs with seven compute and eight memory slices. They differ in the
// gigabytes of one, two, four and eight memory slices, and in their MiB.
func sevenths(gb [4]string, memory [4]uint64) []host.Profile {
	return []host.Profile{
		profile(19, 0, "1g."+gb[0]+"gb", 1, 7, memory[0], 1, 0, 1, 2, 3, 4, 5, 6),
		profile(20, 7, "1g."+gb[0]+"gb+me", 1, 1, memory[0], 1, 0, 1, 2, 3, 4, 5, 6),
		profile(15, 9, "1g."+gb[1]+"gb", 1, 4, memory[1], 2, 0, 2, 4, 6),
		profile(14, 1, "2g."+gb[1]+"gb", 2, 3, memory[1], 2, 0, 2, 4),
		profile(9, 2, "3g."+gb[2]+"gb", 3, 2, memory[2], 4, 0, 4),
		profile(5, 3, "4g."+gb[2]+"gb", 4, 1, memory[2], 4, 0),
		profile(0, 4, "7g."+gb[3]+"gb", 7, 1, memory[3], 8, 0),
	}
}

// twelfths is the grid of RTX PRO 6000: four compute and twelve memory slices.
func twelfths() []host.Profile {
	quarter := func(id, enum int, suffix string, most int) host.Profile {
		return profile(id, enum, "1g.24gb"+suffix, 1, most, 24192, 3, 0, 3, 6, 9)
	}
	half := func(id, enum int, suffix string, most int) host.Profile {
		return profile(id, enum, "2g.48gb"+suffix, 2, most, 48512, 6, 0, 6)
	}
	return []host.Profile{
		quarter(14, 0, "", 4),
		quarter(21, 7, "+me", 1),
		quarter(47, 10, "+gfx", 4),
		quarter(65, 15, "+me.all", 1),
		quarter(67, 13, "-me", 4),

		half(5, 1, "", 2),
		half(35, 11, "+gfx", 2),
		half(64, 16, "+me.all", 1),
		half(66, 14, "-me", 2),

		profile(0, 3, "4g.96gb", 4, 1, 97280, 12, 0),
		profile(32, 12, "4g.96gb+gfx", 4, 1, 97280, 12, 0),
	}
}
