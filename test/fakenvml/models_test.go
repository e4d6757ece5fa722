// SPDX-License-Identifier: Apache-2.0

package fakenvml

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/test/check"
)

func models(t testing.TB) []Model {
	t.Helper()
	all, err := Models()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestNamesFollowFromMemory computes profile names as those must who read version 1 of NVML's
// profile info, which has no name: eighths of the memory, rounded up, of the whole GiB.
func TestNamesFollowFromMemory(t *testing.T) {
	for _, m := range models(t) {
		for _, p := range m.Profiles {
			eighths := math.Ceil(8 * float64(p.MemoryMB) / float64(m.MemoryMB))
			whole := math.Ceil(float64(m.MemoryMB) / 1024)
			want := fmt.Sprintf("%dg.%dgb", p.Slices, int(math.Round(eighths/8*whole)))
			check.That(t, len(p.Name) >= len(want) && p.Name[:len(want)] == want, "%s: profile %d is called %s, its memory says %s", m.Key, p.ID, p.Name, want)
		}
	}
}

// TestOneTable: the fake driver offers what gpuadm's own table says. The fake's has more of each
// GPU (engines, the driver's order of places), gpuadm's has more GPUs.
func TestOneTable(t *testing.T) {
	compared := 0
	for _, m := range models(t) {
		if m.Compute == 0 {
			continue
		}
		all := mig.Models()
		i := slices.IndexFunc(all, func(k mig.Model) bool {
			return slices.Contains(k.Devices, m.device)
		})
		if i < 0 {
			t.Errorf("gpuadm has no table for %s, %s", m.Key, m.device)
			continue
		}
		known := all[i]
		if known.Compute != m.Compute || known.Memory != m.Slices || known.Resets() != m.Resets {
			t.Errorf("%s: %d and %d slices, resets %v; gpuadm's table: %d, %d, %v", m.Key, m.Compute, m.Slices, m.Resets, known.Compute, known.Memory, known.Resets())
		}
		var fake, table []string
		for _, p := range m.Profiles {
			starts := slices.Sorted(slices.Values(p.Starts))
			fake = append(fake, fmt.Sprintf("%d %d %s: %d slices, %d at most, %d slices of memory at %v", p.ID, p.Kind, p.Name, p.Slices, p.Max, p.Size, starts))
		}

		for _, p := range known.Profiles {
			var starts []int
			for _, at := range p.Places {
				starts = append(starts, at.Start)
			}
			table = append(table, fmt.Sprintf("%d %d %s: %d slices, %d at most, %d slices of memory at %v", p.ID, p.Enum, p.Name, p.Slices, p.Max, p.Places[0].Size, starts))
		}

		slices.Sort(fake)
		slices.Sort(table)
		for _, line := range fake {
			check.That(t, slices.Contains(table, line), "%s: only the fake has %s", m.Key, line)
		}
		for _, line := range table {
			check.That(t, slices.Contains(fake, line), "%s: only gpuadm's table has %s", m.Key, line)
		}
		compared += len(fake)
	}

	check.That(t, compared != 0, "nothing was compared")
}

// TestAsRecorded: the fake H100 has the name, the ids and the partitions of the recorded H100.
func TestAsRecorded(t *testing.T) {
	file, err := txtar.ParseFile("../hosts/h100-passed-through.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var real struct {
		GPU []struct {
			Name, Device, Sub string
			Profiles          []struct {
				ID, Enum, Slices, Max int
				Name                  string
				Memory                int
				Places                []struct{ Start, Size int }
			}
		}
	}
	settings := slices.IndexFunc(file.Files, func(f txtar.File) bool {
		return f.Name == "sim.toml"
	})
	if err := toml.Unmarshal(file.Files[settings].Data, &real); err != nil || len(real.GPU) != 1 {
		t.Fatalf("%d GPUs: %v", len(real.GPU), err)
	}
	all := models(t)
	fake := all[slices.IndexFunc(all, func(m Model) bool { return m.Key == "H100-80" })]
	check.Equal(t, fake.Name, real.GPU[0].Name, "name")
	check.Equal(t, fmt.Sprint([]string{fake.device, fake.board}), fmt.Sprint([]string{real.GPU[0].Device, real.GPU[0].Sub}), "device and subsystem")
	check.Equal(t, len(fake.Profiles), len(real.GPU[0].Profiles), "profiles")
	for _, is := range real.GPU[0].Profiles {
		p := fake.Profiles[slices.IndexFunc(fake.Profiles, func(p Profile) bool {
			return p.ID == is.ID
		})]
		starts := slices.Sorted(slices.Values(p.Starts))
		var places []int
		for _, place := range is.Places {
			places = append(places, place.Start)
			check.Equal(t, p.Size, place.Size, "%s: size of a place", is.Name)
		}

		check.Equal(t, fmt.Sprint(p.Kind, p.Name, p.Slices, p.Max, p.MemoryMB<<20, starts), fmt.Sprint(is.Enum, is.Name, is.Slices, is.Max, is.Memory, places), "profile %d", is.ID)
	}
}
