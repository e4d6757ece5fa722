// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
)

// says are texts of each section that are right by themselves.
var says = map[string][]string{
	"driver":     {`gpu_count = 2`, `owner = "other"`, "source = \"runfile\"\nversion = \"580.95.05\"\nrunfile.sha256 = \"" + strings.Repeat("ab", 32) + `"`},
	"toolkit":    {`accept_envvar_unprivileged = true`, `runtimes = ["/usr/bin/runc"]`},
	"runtime":    {`inject = "cdi"`, `set_as_default = true`, `cdi = false`},
	"mig":        {`gpu = [{ layout = { "1g.10gb" = 7 } }]`, twoKinds, twoTables, someOff, `gpu = [{ layout = {} }]`, `gpu = [{ devices = [2], layout = { "1g" = 7 } }]`, twoModels, "file = \"/m\"\nfollow_label = true"},
	"sharing":    {`strategy = "single"`, `strategy = "mixed"`, `time_slicing = 4`, `mps = 4`},
	"node":       {`labels = { "nvidia.com/mig.config" = "all" }`, `labels = { "nvidia.com/device-plugin.config" = "a" }`, `startup_taint = "none"`, `wait_for_allocatable = true`},
	"join":       {`method = "auto"`, "method = \"eks\"\ngate = \"open\""},
	"proxy":      {`http = "http://proxy.example:3128"`},
	"disruption": {`policy = "drain"`, `policy = "never"`},
}

const (
	twoKinds  = `gpu = [{ layout = { "1g.10gb" = 4, "3g.40gb" = 1 } }]`
	twoTables = `gpu = [{ devices = [0], layout = { "1g.10gb" = 7 } }, { devices = [1], placements = [{ profile = "3g.40gb", start = 0 }] }]`
	someOff   = `gpu = [{ devices = [0], layout = { "1g" = 7 } }, { devices = [1], enabled = false }]`
	twoModels = `gpu = [{ match = ["A100"], layout = { "1g.5gb" = 7 } }, { match = ["H100"], layout = { "1g.10gb" = 7 } }]`
)

// TestPairs: of all pairs of sections these and no others refuse each other, and each rule has its
// example.
func TestPairs(t *testing.T) {
	want := []string{
		"driver gpu_count = 2 | mig " + says["mig"][5],
		"mig " + says["mig"][7] + " | node " + says["node"][0],
	}
	for i, text := range says["mig"] {
		want = append(want, "mig "+text+" | sharing mps = 4")
		if i >= 1 && i <= 4 {
			want = append(want, "mig "+text+` | sharing strategy = "single"`)
		}
	}

	sections, got, pairs := slices.Sorted(maps.Keys(says)), []string{}, map[[2]string]bool{}
	for i, a := range sections {
		for _, b := range sections[i+1:] {
			for _, x := range says[a] {
				for _, y := range says[b] {
					err := broken(fmt.Sprintf("format = 1\n[%s]\n%s\n[%s]\n%s\n", a, x, b, y))
					if err != nil {
						got = append(got, a+" "+x+" | "+b+" "+y)
						pairs[[2]string{a, b}] = true
						check.That(t, len(err) == 1 && len(err[0].Try) > 0, "%s: %v", got[len(got)-1], err)
					}
				}
			}
		}
	}

	check.Equal(t, len(sections), len(sectionNames(table())), "sections with texts here")
	slices.Sort(want)
	slices.Sort(got)
	check.Equal(t, strings.Join(got, "\n"), strings.Join(want, "\n"), "refused")
	for _, r := range crossRules() {
		check.That(t, pairs[[2]string{min(r.a, r.b), max(r.a, r.b)}], "%s × %s: no example", r.a, r.b)
	}
}

func broken(text string) (all trouble.Faults) {
	_, err := Parse(File{Name: "node.toml", Data: []byte(text)})
	errors.As(err, &all)
	return all
}

// TestSingle: the device plugin takes one kind of partition, on all GPUs or on none.
func TestSingle(t *testing.T) {
	gpu := func(kinds ...string) Offers { return Offers{MIG: kinds != nil, Kinds: kinds} }
	for _, c := range []struct {
		all  []Offers
		says string
	}{
		{nil, ""},
		{[]Offers{gpu(), gpu()}, ""},
		{[]Offers{gpu("1g.10gb", "1g.10gb"), gpu("1g")}, ""},
		{[]Offers{gpu("1g.10gb"), gpu("1g.20gb")}, "GPU 0 has 1g.10gb, GPU 1 has 1g.20gb"},
		{[]Offers{gpu("3g.40gb", "1g.10gb")}, "GPU 0 has 3g.40gb and 1g.10gb"},
		{[]Offers{gpu("1g.10gb"), gpu()}, "GPU 0 has MIG, GPU 1 has not"},
		{[]Offers{gpu(), gpu("1g.10gb")}, "GPU 1 has MIG, GPU 0 has not"},
		{[]Offers{gpu("1g.10gb"), gpu([]string{}...)}, "GPU 1 has MIG and no partition"},
		{[]Offers{gpu("1c.3g.40gb"), gpu("3g.40gb")}, "GPU 0 has 1c.3g.40gb, GPU 1 has 3g.40gb"},
	} {
		for i := range c.all {
			c.all[i].GPU = fmt.Sprintf("GPU %d", i)
		}
		got := Spec{Sharing: Sharing{Strategy: "single"}}.Single(c.all)
		check.That(t, (got == nil) == (c.says == "") && (got == nil || strings.Contains(got.What, c.says)), "%v: %v; want %s", c.all, got, c.says)
		check.That(t, Spec{Sharing: Sharing{Strategy: "mixed"}}.Single(c.all) == nil, "%v: strategy mixed", c.all)
	}
}

// TestStrategy: how the device plugin has to offer what [mig] makes.
func TestStrategy(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "none",
		"[sharing]\nstrategy = \"mixed\"\n": "mixed",
		"[[mig.gpu]]\nenabled = false\n":    "none",
		"[[mig.gpu]]\nlayout = { \"1g.10gb\" = 7 }\n":                "single",
		"[mig]\n" + twoKinds:                                         "mixed",
		"[mig]\n" + twoTables:                                        "mixed",
		"[mig]\n" + someOff:                                          "mixed",
		"[mig]\n" + twoModels:                                        "mixed",
		"[[mig.gpu]]\nlayout = {}\n":                                 "mixed",
		"[[mig.gpu]]\ndevices = [0]\nlayout = { \"1g\" = 7 }\n":      "mixed",
		"[mig]\nfile = \"/etc/gpuadm/mig.yaml\"\nlayout = \"all\"\n": "mixed",
	} {
		s, err := Parse(File{Name: "node.toml", Data: []byte("format = 1\n" + text)})
		check.That(t, err == nil && s.Strategy() == want, "%s: %q, %v; want %q", text, s.Strategy(), err, want)
	}
}

// TestStrategyFor: beside a GPU that the tables do not partition the open strategy is mixed.
func TestStrategyFor(t *testing.T) {
	s := Spec{MIG: MIG{GPU: []MIGGPU{{
		Enabled: true,
		Devices: Devices{All: true},
		Layout:  map[string]int{"1g.5gb": 7},
	}}}}
	cut, whole := Offers{
		GPU:   "GPU 0",
		MIG:   true,
		Kinds: []string{"1g.5gb"},
	}, Offers{GPU: "GPU 1"}
	check.Equal(t, s.StrategyFor([]Offers{cut, cut}), "single", "two alike: ")
	check.Equal(t, s.StrategyFor([]Offers{cut, whole}), "mixed", "beside a T4: ")
	s.Sharing.Strategy = "single"
	check.Equal(t, s.StrategyFor([]Offers{cut, whole}), "single", "stated: ")
}

// TestStartupTaintIsNoOther: the startup taint goes once the GPUs are ready.
func TestStartupTaintIsNoOther(t *testing.T) {
	const taints = "format = 1\n[node]\ntaints = [\"a.example/x=y:NoSchedule\"]\nstartup_taint = "
	for startup, refused := range map[string]bool{
		`"a.example/x:NoSchedule"`: true,
		`"a.example/x:NoExecute"`:  false,
		`"b.example/x:NoSchedule"`: false,
		`"auto"`:                   false,
	} {
		faults := broken(taints + startup + "\n")
		check.Equal(t, len(faults) == 1, refused, "%s: %v is refused: ", startup, faults)
	}
}
