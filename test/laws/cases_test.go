// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// sections are wanted of every machine, and each is shrunk and grown into every other.
var sections = map[string]string{
	"nothing":        "",
	"handler":        "[runtime]\nengine = \"containerd\"\ncdi = false\n",
	"default":        "[runtime]\nengine = \"containerd\"\nset_as_default = true\n",
	"other":          "[runtime]\nengine = \"containerd\"\nhandler = \"nvidia-two\"\n",
	"crio":           "[runtime]\nengine = \"crio\"\n",
	"crio default":   "[runtime]\nengine = \"crio\"\nset_as_default = true\n",
	"docker":         "[runtime]\nengine = \"docker\"\n",
	"docker default": "[runtime]\nengine = \"docker\"\nset_as_default = true\ncdi = false\n",
	"mig":            "[[mig.gpu]]\nlayout = { \"7g.80gb\" = 1 }\nmatch = [\"H100-80GB\"]\n[[mig.gpu]]\nlayout = { \"1g.5gb\" = 7 }\nmatch = [\"A100-40GB\"]\n",
	"mig two":        "[[mig.gpu]]\nplacements = [{ profile = \"3g.40gb\", start = 4 }, { profile = \"2g.20gb\", start = 0 }]\nmatch = [\"H100-80GB\"]\n[[mig.gpu]]\nenabled = false\nmatch = [\"A100-40GB\"]\n",
	"ours":           "[runtime]\nengine = \"containerd\"\nowner = \"gpuadm\"\nset_as_default = true\n",
}

const (
	labelsA = "[node]\nstartup_taint = \"none\"\nlabels = { \"example.com/pool\" = \"h200\" }\n"
	labelsB = "[node]\nstartup_taint = \"none\"\nlabels = { \"example.com/rack\" = \"r2\", \"example.com/pool\" = \"b200\" }\n"
	taint   = "taints = [\"nvidia.com/gpu=present:NoSchedule\"]\n"
	mirror  = "url = \"https://mirror.example/debian12\"\nkey = \"/etc/gpuadm/key.asc\"\nfingerprint = \"F22CC24F7F742054127646D9354FB98A5B4AF876\"\n"
)

// A wish is what a machine is asked for: a spec, and whether gpuadm installs itself too.
type wish struct {
	text    string
	install bool
	needs   string // what the machine must have for it, as sections of its archive
	on      string // the only machine that it is tested on; "" = all
}

// wishes are the sections, and what takes more than a spec.
var wishes = sync.OnceValue(func() map[string]wish {
	all := map[string]wish{
		"install": {install: true},
		"node":    {text: labelsA + taint},
		"all":     {text: sections["default"] + labelsB, install: true},
	}
	for name, text := range sections {
		all[name] = wish{text: text}
	}
	key, err := os.ReadFile("../../internal/things/testdata/ed25519.asc")
	if err != nil {
		panic(err)
	}
	all["driver"] = wish{ // of an image, where packages wait for the first boot, and all that brings them is written
		text:  "[driver]\nversion = \"580.95.05\"\n[driver.repo]\n" + mirror + "[toolkit]\nversion = \"1.18.0\"\n[toolkit.repo]\n" + mirror,
		needs: "-- etc/apt/apt.conf.d/ --\n-- etc/apt/preferences.d/ --\n-- etc/gpuadm/key.asc --\n" + string(key), on: "bake-root",
	}
	// K3s imports a folder of drop-ins; RKE2, as it was recorded, takes a template.
	all["k3s"] = wish{text: sections["default"], on: "k3s"}
	all["rke2"] = wish{text: sections["other"], on: "rke2"}
	return all
})

// engine has all stages. Labels and taints are for a kubelet that will start: without those that
// wait for the node to be ready, or look for a driver, which few of these machines have.
func (w wish) engine(t testing.TB) *converge.Engine {
	t.Helper()
	e := engine(t, w.text)
	if e.Spec.Has("node") {
		e.Stages = slices.DeleteFunc(stages.BeforeKubelet(), func(st converge.Stage) bool {
			return st.Name == "gpus"
		})
	}

	if w.install {
		e.Stages = append(e.Stages, stages.Install([]byte("this binary\n")))
	}
	return e
}

// machine is a recorded one that has what the wish needs.
func (w wish) machine(m machine) machine {
	if w.needs != "" {
		m.archive = slices.Concat(m.archive, []byte("\n"+w.needs))
	}
	return m
}

// A lawCase is a machine and what can be applied there.
type lawCase struct {
	machine
	name string
	wish wish
}

// lawCases are all recorded machines with all wishes that can be applied there. Wishes that ask the
// same of a machine are tested once. Each law asks for them: they are found once.
func lawCases(t testing.TB) []lawCase {
	t.Helper()
	foundCases.Do(func() { foundCases.cases = findCases(t) })
	return foundCases.cases
}

var foundCases struct {
	sync.Once
	cases []lawCase
}

func findCases(t testing.TB) (cases []lawCase) {
	t.Helper()
	for _, recorded := range machines(t) {
		seen := map[string]bool{}
		for _, name := range slices.Sorted(maps.Keys(wishes())) {
			w := wishes()[name]
			if w.on != "" && w.on != recorded.name {
				continue
			}
			m := w.machine(recorded)
			p := plan(t, m.boot(t), w.engine(t))
			if len(p.Cannot()) > 0 || seen[fmt.Sprint(p.Changes)] {
				continue // TestRefusalsTouchNothing has what cannot be made
			}
			seen[fmt.Sprint(p.Changes)] = true
			cases = append(cases, lawCase{m, recorded.name + "/" + name, w})
		}
	}

	return cases
}

// each runs a law for every case.
func each(t *testing.T, law func(t *testing.T, m machine, e func() *converge.Engine)) {
	cases := lawCases(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			law(t, c.machine, func() *converge.Engine { return c.wish.engine(t) })
		})
	}

	check.That(t, len(cases) >= 50, "only %d machines and wishes could be applied: the law was hardly tested", len(cases))
}

// sample is wholeSample, or in a night its part of that.
func sample(t testing.TB, n, most int) (picked []int) {
	t.Helper()
	all := wholeSample(t, n, most)
	which, of := check.Part()
	for i := min(which-1, max(len(all)-1, 0)); i < len(all); i += of {
		picked = append(picked, all[i])
	}
	return picked
}

// wholeSample picks numbers below n: all of them in a nightly run, else one of each of `most` equal
// stretches, always the same ones. With -short it picks one for every eighth test, for the race
// detector, which makes the engine several times slower.
func wholeSample(t testing.TB, n, most int) (picked []int) {
	t.Helper()
	hash := func(i int) int {
		h := fnv.New32a()
		fmt.Fprint(h, t.Name(), i)
		return int(h.Sum32() >> 1)
	}

	if testing.Short() {
		most = min(1, hash(-1)%8)
		most = 1 - most
	} else if check.All() || most > n {
		most = n
	}

	for i := range most {
		from, to := i*n/most, (i+1)*n/most
		if to > from {
			picked = append(picked, from+hash(i)%(to-from))
		}
	}

	return picked
}

// every counts as range n does in a nightly run, or takes its part of that. Else it takes one number
// in 6, with -short one in 32; where it begins is said by turn.
func every(n int) iter.Seq[int] {
	which, step := check.Part()
	first := which - 1
	if !check.All() {
		step = 6
		if testing.Short() {
			step = 32
		}
		first = check.Turn(step)
	}

	return func(yield func(int) bool) {
		for i := min(first, max(n-1, 0)); i < n && yield(i); i += step {
		}
	}
}

// losses are the ways a disk may lose what was not synced: all of them in a nightly run, else one,
// by turns. The random one differs from cut to cut.
func losses(cut int) []simhost.Loss {
	all := []simhost.Loss{simhost.LoseAll, simhost.LoseData, simhost.Random(uint32(cut)), simhost.LoseNothing}
	if check.All() {
		return all[:3]
	}
	return all[cut%4 : cut%4+1]
}

// leftover is what a write leaves that was cut short.
var leftover = regexp.MustCompile(`(?m)^\S*/\.gpuadm-[^/ ]*\.tmp .*$`)

// clean holds that no temporary file is left on the whole machine, gpuadm's own folder included.
func clean(t testing.TB, what string, n *simhost.Node) {
	t.Helper()
	left := leftover.FindAllString(n.Tree(), -1)
	must.That(t, len(left) == 0, "%s: this is left:\n%s", what, strings.Join(left, "\n"))
}

func compare(t testing.TB, what, want, got string) {
	t.Helper()
	if want != got {
		t.Fatalf("%s (-want +got):\n%s", what, cmp.Diff(want, got))
	}
}
