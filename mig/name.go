// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/nearest"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// name is a profile's name taken apart: [Cc.]Gg[.Ngb][+attribute[,attribute]] or -attribute, as
// NVIDIA's go-nvlib reads it. A name without gigabytes is gpuadm's shorthand: 1g is this GPU's
// smallest profile with one slice.
type name struct {
	compute    int // slices of the compute instance; 0 = all
	slices     int // compute slices of the GPU instance
	gigabytes  int // 0: whatever this GPU has
	attributes string
}

// whole is the name of the GPU instance, without the compute instance.
func (n name) whole() string {
	s := strconv.Itoa(n.slices) + "g"
	if n.gigabytes > 0 {
		s += "." + strconv.Itoa(n.gigabytes) + "gb"
	}
	return s + n.attributes
}

// String is the full name, with the compute instance if the name has one.
func (n name) String() string {
	if n.compute == 0 {
		return n.whole()
	}
	return strconv.Itoa(n.compute) + "c." + n.whole()
}

// namePattern is what a name is made of: no number begins with 0, and no attribute with a digit.
var namePattern = pattern.Of(`^(?:([1-9]\d{0,3})c\.)?([1-9]\d{0,3})g(?:\.([1-9]\d{0,3})gb)?([+-][A-Za-z.][A-Za-z0-9.]*(?:,[A-Za-z.][A-Za-z0-9.]*)*)?$`)

func parseName(s string) (name, error) {
	if len(s) > 64 {
		return name{}, fmt.Errorf("%.20q… is not a MIG profile: it is too long", s)
	}
	n, why := splitName(s)
	if why == "" {
		return n, nil
	}

	// People write it in capitals, as nvidia-smi -L does ("MIG 1g.10gb"), or as Kubernetes does
	// ("mig-1g.10gb.me").
	low := strings.ToLower(strings.TrimSpace(s))
	low = strings.TrimPrefix(strings.TrimPrefix(low, "mig "), "mig-")
	low = strings.Replace(low, "gb.", "gb+", 1)
	for _, likely := range []string{low, low + "b", low + "gb"} { // 1g.10g, 1g.10
		if _, still := splitName(likely); still == "" {
			why = "did you mean " + strconv.Quote(likely) + "?"
			break
		}
	}

	return name{}, fmt.Errorf("%q is not a MIG profile: %s", s, why)
}

// splitName parses a profile's name, and sorts its attributes; why is not "" if it is not a name.
func splitName(s string) (n name, why string) {
	m := namePattern().FindStringSubmatch(s)
	if m == nil {
		return n, `write it as nvidia-smi mig -lgip does: "1g.10gb", "1g.10gb+me"`
	}

	n.compute, _ = strconv.Atoi(m[1]) // 0 where there is none
	n.slices, _ = strconv.Atoi(m[2])
	n.gigabytes, _ = strconv.Atoi(m[3])
	if n.compute > n.slices {
		return n, "the compute instance has more slices than its GPU instance"
	}
	if n.compute == n.slices {
		n.compute = 0
	}
	if m[4] == "" {
		return n, ""
	}

	sign := m[4][:1]
	attributes := strings.Split(m[4][1:], ",")
	slices.Sort(attributes)
	if len(slices.Compact(slices.Clone(attributes))) != len(attributes) {
		return n, "an attribute is there twice"
	}
	n.attributes = sign + strings.Join(attributes, ",")

	return n, ""
}

// profile finds this GPU's profile of a name. The error is a *trouble.Error that says what the GPU
// offers.
func (m Model) profile(n name) (host.Profile, error) {
	smallest := -1
	for i, p := range m.Profiles {
		other, err := parseName(p.Name)
		if err != nil || other.slices != n.slices || other.attributes != n.attributes {
			continue
		}
		if n.gigabytes == other.gigabytes {
			return p, nil
		}
		// "1g" is the one with the least memory: 1g.10gb, not 1g.20gb.
		if n.gigabytes == 0 && (smallest < 0 || size(p) < size(m.Profiles[smallest])) {
			smallest = i
		}
	}

	if smallest >= 0 {
		return m.Profiles[smallest], nil
	}

	return host.Profile{}, m.noSuchProfile(n)
}

// size is how many memory slices a profile takes.
func size(p host.Profile) int {
	if len(p.Places) == 0 {
		return 0
	}
	return p.Places[0].Size
}

// noSuchProfile says what the GPU offers in place of a profile that it lacks. Names differ between
// boards and drivers of one PCI id (https://github.com/NVIDIA/mig-parted/issues/227): so it
// suggests the profile that is nearest in memory.
func (m Model) noSuchProfile(n name) error {
	near := ""
	least := 0
	var offers []string
	for _, p := range m.Profiles {
		offers = append(offers, p.Name)
		other, err := parseName(p.Name)
		if err != nil || other.slices != n.slices || n.gigabytes == 0 {
			continue
		}
		distance := 2 * max(other.gigabytes-n.gigabytes, n.gigabytes-other.gigabytes)
		if other.attributes != n.attributes {
			distance += max(3, n.gigabytes) // the same attributes come first
		}
		if near == "" || distance < least {
			near = p.Name
			least = distance
		}
	}

	if near == "" {
		near = nearest.Of(n.whole(), offers)
	}

	t := &trouble.Error{
		What:    fmt.Sprintf("cannot make %s on %s: it has no such profile", n.whole(), m.Name),
		Because: []string{"it offers " + strings.Join(offers, ", ")},
	}
	if near != "" {
		t.Try = []string{"did you mean " + strconv.Quote(near) + "?"}
	}

	return t
}
