// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestStateText(t *testing.T) {
	for _, text := range []string{
		"", "off", "on", "off, on after a reset", "on, off after a reset",
		"on 3g.40gb@0 1g.10gb@4 1g.10gb+me@5 2g.20gb@6(1c,1c)",
		"on 7g.80gb@0(3c,2c,1c,1c)", "on 3g.40gb@0()", "on ?65@3(1c) 1g.24gb-me@6",
		"on 3g.40gb@4(1c,1c), off after a reset", "on 1g.5gb+gfx,me@0", "on 1g.5gb+me,gfx@0",
	} {
		s, err := ParseState(text)
		check.That(t, err == nil && s.String() == text, "%q: read as %q, %v", text, s, err)
	}

	for _, text := range []string{
		" ", "On", "on ", " on", "on  1g.5gb@0", "off 1g.5gb@0", "on, on after a reset", "on, off", "on,off after a reset",
		"on 1g.5gb", "on 1g.5gb@", "on 1g.5gb@-1", "on 1g.5gb@00", "on 1g.5gb@1000", "on 1g.5gb@1 1g.5gb@0", "on 1g.5gb@0(1c)",
		"on 1g.5gb@0(", "on 2g.10gb@0(1c,)", "on 2g.10gb@0(1c,2c)", "on 2g.10gb@0(0c)", "on ?65@0", "on ?@0()", "on ?-1@0()", "on ?07@0()",
		"on 1c.2g.10gb@0", "on 2g.10gb@0(2c@0)", "on 2g.10gb@0(1c@0,1c@1)", "on MIG 1g.5gb@0", "on\n", "unknown",
	} {
		s, err := ParseState(text)
		check.That(t, err != nil, "%q: read as %+v", text, s)
	}
}

// TestStateRoundTrip: text and GPU say the same, both ways.
func TestStateRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, m := range Models() {
		for range 100 {
			s := random(rnd, m)
			back, err := ParseState(s.String())
			must.That(t, err == nil && back.String() == s.String(), "%s: read as %s, %v", s, back, err)
			got := StateOf(newSim(m, s).gpu)
			must.That(t, got.String() == s.String(), "%s: the GPU says %s", s, got)
		}
	}
}

func TestStateOf(t *testing.T) {
	g := host.GPU{
		MIG: true, Mode: true, Pending: true,
		Profiles: []host.Profile{{
			ID:      9,
			Name:    "MIG 3g.40gb",
			Slices:  3,
			Compute: []host.ComputeProfile{{ID: 0, Slices: 1}, {ID: 2, Slices: 3}},
		}},
		Instances: []host.Instance{
			{ID: 2, Profile: 9, At: host.Span{
				Start: 4,
				Size:  4,
			}, Clients: []int{77}, Compute: []host.ComputeInstance{{Profile: 2}}},
			{ID: 1, Profile: 44, At: host.Span{
				Start: 2,
				Size:  1,
			}, Compute: []host.ComputeInstance{{Profile: 3, At: host.Span{Size: 1}}}},
			{ID: 0, Profile: 9, At: host.Span{Start: 0, Size: 4}},
		},
	}
	s := StateOf(g)
	got, want := s.String(), "on 3g.40gb@0() ?44@2(1c) 3g.40gb@4"
	check.That(t, got == want && s.Parts[2].Busy && !s.Parts[0].Busy, "got %s (%+v), want %s", got, s, want)
	g.Lost = "it has fallen off the bus"
	got = StateOf(g).String() + StateOf(host.GPU{}).String()
	check.That(t, got == "", "a GPU that does not answer, and one without MIG: %q", got)
}

func FuzzState(f *testing.F) {
	f.Add("on 3g.40gb@0 1g.10gb@4 2g.20gb@6(1c,1c)")
	f.Add("off, on after a reset")
	f.Add("on ?65@3(1c,1c) 1g.24gb-me@6()")
	models := Models()
	f.Fuzz(func(t *testing.T, text string) {
		var s State
		var err error
		alloc.Most(t, 1000, len(text), func() { s, err = ParseState(text) })
		if err != nil {
			return
		}
		must.That(t, s.String() == text, "%q is written %q", text, s)
		for _, m := range models {
			want := Layout{Enabled: true, Wants: []Want{{Profile: "1g", Start: Anywhere}}}
			if fit, err := m.Fit(s, want); err == nil {
				if again, err := m.Fit(fit.Target, want); err != nil || again.Target.String() != fit.Target.String() {
					t.Fatalf("%q on %s: %s, then %s, %v", text, m.Name, fit.Target, again.Target, err)
				}
				must.Get(m.Steps(s, fit.Target))(t)
			}
		}
	})
}

func FuzzParted(f *testing.F) {
	f.Add([]byte("version: v1\nmig-configs:\n  a:\n  - devices: [0]\n    device-filter: [\"0x20B010DE\"]\n    mig-enabled: true\n    mig-devices: {1c.3g.20gb: 4, 1g.5gb: 0}\n"))
	f.Add([]byte("version: v1\nmig-configs: &a\n  x: &b [*b]\n  <<: *a\n"))
	f.Add([]byte("version: v1\nmig-configs: {a: [{devices: all, mig-enabled: no, <<: {a: b}}]}"))
	models := Models()
	f.Fuzz(func(t *testing.T, data []byte) {
		var c Config
		var err error
		alloc.Most(t, 2000, len(data), func() { c, err = ParseParted("f", data) })
		if err != nil {
			if list, ok := err.(trouble.Faults); !ok || len(list) == 0 {
				t.Fatal("refused without a reason")
			}
			return
		}

		for _, l := range c.Layouts[:min(3, len(c.Layouts))] {
			for _, e := range l.Entries[:min(3, len(l.Entries))] {
				for _, m := range models[:2] {
					checkFit(t, m, e.Layout)
				}
			}
		}
	})
}

func FuzzLayout(f *testing.F) {
	f.Add(uint8(1), []byte{0, 255, 0, 3, 255, 1, 4, 4, 0})
	f.Add(uint8(13), []byte{1, 255, 0, 5, 0, 2})
	models := Models()
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		m := models[int(which)%len(models)]
		l := Layout{Enabled: true}
		for ; len(data) >= 3 && len(l.Wants) < 16; data = data[3:] {
			p := m.Profiles[int(data[0])%len(m.Profiles)]
			w := Want{Profile: p.Name, Start: int(int8(data[1]))}
			if w.Start < 0 {
				w.Start = Anywhere
			}
			for i := range int(data[2] % 8) {
				w.Compute = append(w.Compute, 1+int(data[2]>>3)%(i+2))
			}
			l.Wants = append(l.Wants, w)
		}

		checkFit(t, m, l)
	})
}

// checkFit: what fits overlaps nowhere, is what was asked for, can be made, and has this state once
// made.
func checkFit(t *testing.T, m Model, l Layout) {
	t.Helper()
	fit, err := m.Fit(StateOf(m.GPU()), l)
	if err != nil {
		return
	}
	var used uint64
	for _, f := range m.placedParts(fit.Target) {
		must.That(t, f.profile != noProfile && used&f.mask == 0, "%s on %s: %s", l, m.Name, fit.Target)
		used |= f.mask
	}

	must.That(t, len(fit.Target.Parts) == len(l.Wants), "%s on %s: %s", l, m.Name, fit.Target)
	if fit.Target.Mode == On {
		newSim(m, fit.Target) // panics if it cannot be made
	}
	again, err := m.Fit(fit.Target, l)
	must.That(t, err == nil && again.Target.String() == fit.Target.String() && again.Destroys+again.Creates <= 0,
		"%s on %s: %s, then %s, %v", l, m.Name, fit.Target, again.Target, err)
}

// answers is a machine whose driver gives one answer.
type answers struct {
	host.View
	driver host.Driver
}

func (a answers) Driver(context.Context) (host.Driver, error) { return a.driver, nil }

// TestLookAtLost: a GPU that the driver does not list was removed, but not while the driver lists a
// lost GPU without an address: it may be that one.
func TestLookAtLost(t *testing.T) {
	other := model(t, "H100-80").GPU()
	other.Address = "0000:2a:00.0"
	lost := host.GPU{Index: 0, Lost: "it has fallen off the bus"}
	thing := gpu{address: "0000:17:00.0"}

	found, err := thing.Look(t.Context(), answers{driver: host.Driver{GPUs: []host.GPU{other}}})
	check.That(t, err == nil && found == "", "removed: %q, %v", found, err)

	found, err = thing.Look(t.Context(), answers{driver: host.Driver{GPUs: []host.GPU{lost, other}}})
	const want = "cannot read GPU 0000:17:00.0: the driver does not say the address of GPU 0: it has fallen off the bus"
	check.That(t, err != nil && err.Error() == want, "lost: %q, %v; want %s", found, err, want)
}
