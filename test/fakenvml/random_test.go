// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package fakenvml

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// oracle says what a GPU must answer, from the table alone and written apart from the library.
type oracle struct {
	m    Model
	held map[int]Profile // by start
}

func (o *oracle) create(p Profile, start int) nvml.Return {
	if !slices.Contains(p.Starts, start) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	same := 0
	for at, other := range o.held {
		if start < at+other.Size && at < start+p.Size {
			return nvml.ERROR_INSUFFICIENT_RESOURCES
		}
		if other.ID == p.ID {
			same++
		}
		if other.Media+p.Media > 2 && other.Media > 0 && p.Media > 0 {
			return nvml.ERROR_INSUFFICIENT_RESOURCES
		}
	}
	me := func(p Profile) bool { return strings.HasSuffix(p.Name, "+me") } // one JPEG engine and one OFA for all of these
	for _, h := range o.held {
		if me(p) && me(h) {
			return nvml.ERROR_INSUFFICIENT_RESOURCES
		}
	}
	if same == p.Max {
		return nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	o.held[start] = p
	return nvml.SUCCESS
}

// step is one random act on the GPU and on the oracle.
func (o *oracle) step(t testing.TB, d nvml.Device, act, which, where byte) {
	t.Helper()
	p := o.m.Profiles[int(which)%len(o.m.Profiles)]
	info := profile(t, d, p)
	start := int(where) % o.m.Slices
	if act%3 != 0 {
		_, got := d.CreateGpuInstanceWithPlacement(&info, place(p, start))
		if expected := o.create(p, start); got != expected {
			t.Fatalf("%s at %d beside %v: got %v, want %v", p.Name, start, o.held, got, expected)
		}
		return
	}
	there, ok := o.held[start]
	if !ok {
		return
	}
	gi, ret := d.GetGpuInstanceById(id(o.m, start, there.Size))
	must(t, ret)
	must(t, gi.Destroy())
	delete(o.held, start)
}

func TestRandom(t *testing.T) {
	for _, m := range models(t) {
		if len(m.Profiles) == 0 {
			continue
		}
		t.Run(m.Key, func(t *testing.T) {
			f, lib := load(t, m.Key)
			d := enabled(t, f, lib, 0)
			o := &oracle{m: m, held: map[int]Profile{}}
			random := rand.New(rand.NewPCG(uint64(len(m.Key)), 7))
			for range 2000 {
				o.step(t, d, byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32()))
			}
			dump := f.Dump()
			invariants(t, dump)
			if len(dump.GPUs[0].Instances) != len(o.held) {
				t.Errorf("%d instances, want %d", len(dump.GPUs[0].Instances), len(o.held))
			}
		})
	}
}

func FuzzSteps(f *testing.F) {
	f.Add([]byte{1, 0, 0, 1, 4, 4, 0, 0, 0, 1, 6, 0})
	f.Add([]byte{1, 3, 0, 1, 8, 6, 1, 4, 9, 0, 0, 6})
	fake := New(f, "H100-80,RTX-PRO-6000")
	f.Fuzz(func(t *testing.T, acts []byte) {
		fake.t = t
		fake.Do("new", "--gpus", "H100-80,RTX-PRO-6000")
		lib := attach(t, fake)
		all := models(t)
		for i, key := range []string{"H100-80", "RTX-PRO-6000"} {
			m := all[slices.IndexFunc(all, func(m Model) bool { return m.Key == key })]
			o := &oracle{m: m, held: map[int]Profile{}}
			d := enabled(t, fake, lib, i)
			for n := 0; n+2 < len(acts); n += 3 {
				o.step(t, d, acts[n], acts[n+1], acts[n+2])
			}
		}
		invariants(t, fake.Dump())
	})
}
