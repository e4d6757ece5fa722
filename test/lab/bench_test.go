// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestBenchDriver prints how long a fresh install of driver, toolkit and containerd's configuration takes, by gpuadm and
// by the shell commands of NVIDIA's guides, each on fresh hosts with the same repository. The lab's
// packages are small and near, so real ones have the ratio closer to 1. The figures are not judged here; that both install
// the same packages is. Last comes what an apply costs then that has nothing to do.
func TestBenchDriver(t *testing.T) {
	lab.Asked(t)
	const rounds = 3
	for _, c := range []struct {
		what    string
		headers bool
		stages  []string // the others prove a build
	}{
		{"no module is built", false, []string{"sources", "packages", "runtime"}},
		{"dkms builds a small module", true, nil},
	} {
		var gpuadm, reference []time.Duration
		for range rounds {
			t.Run("round", func(t *testing.T) { // its hosts go when it ends
				a, b := bootBench(t, c.headers), bootBench(t, c.headers)
				gpuadm = append(gpuadm, a.took(slices.Concat([]string{"gpuadm", "apply"}, c.stages)...))
				reference = append(reference, b.took("sh", "-ec", b.shell()))
				if x, y := a.installed(), b.installed(); !maps.Equal(x, y) {
					t.Errorf("gpuadm installs %v, the shell %v", x, y)
				}
			})
		}
		if t.Failed() {
			return
		}
		a, b := median(gpuadm), median(reference)
		t.Logf("%-28s gpuadm %6.2f s   shell %6.2f s   ratio %.2f   (medians of %d)", c.what, a, b, a/b, rounds)
		if c.headers {
			t.Run("ratio", func(t *testing.T) {
				n := bootBench(t, true)
				n.took("gpuadm", "apply")
				n.ratio("with a driver, its modules and the toolkit:")
			})
		}
	}
}

func bootBench(t *testing.T, headers bool) driverNode {
	t.Helper()
	n := bootDriver(t, lab.Options{Dist: "bookworm", Headers: headers})
	program := must.Get(os.ReadFile(parts.Get(t, parts.CTK).CTK.Path))(t)
	n.Put("/usr/local/bin/nvidia-ctk", string(program), 0o755)
	if headers {
		n.Put("/lib/modules/"+headersOf(t, n.Host)+"/modules.dep", "", 0o644) // so that it counts as a kernel
	}
	n.Put(specFile, n.spec("580.65.06", "1.18.0")+"[runtime]\nset_as_default = true\n", 0o644)
	n.answers()
	return n
}

// shell is the same by hand: every package in its exact version, since apt takes the newest of those that are not named.
func (n driverNode) shell() string {
	toolkit := repos.DebSet("1.18.0", "nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")
	return "export DEBIAN_FRONTEND=noninteractive\n" +
		"cat >/etc/apt/sources.list.d/nvidia.list <<'E'\n" + repos.AptSources(repos.Mirror, "bookworm", repos.Keyring) + "E\n" +
		"apt-get -q update\n" +
		"apt-get -q -y install " + strings.Join(append(driverSet("580.65.06"), repos.DebSet("580.65.06", "libnvidia-encode1")...), " ") + "\n" +
		"apt-get -q -y install " + strings.Join(toolkit, " ") + "\n" +
		"nvidia-ctk runtime configure --runtime=containerd --set-as-default\n" +
		"systemctl restart containerd\n"
}

// took times a command that has to exit with 0.
func (n driverNode) took(argv ...string) time.Duration {
	n.t.Helper()
	began := time.Now()
	n.Must(argv...)
	return time.Since(began)
}

// installed are the packages of NVIDIA's with their versions, without marks.
func (n driverNode) installed() map[string]string {
	n.t.Helper()
	list := lab.Only(n.AptState(), "*nvidia*", "libcuda*", "dkms")
	for name, is := range list {
		list[name], _, _ = strings.Cut(is, " ")
	}
	return list
}

func median(list []time.Duration) float64 {
	slices.Sort(list)
	return list[len(list)/2].Seconds()
}

// TestLabConvergedRatio prints how long an apply takes that has nothing to do, beside nvidia-ctk runtime configure on the
// same live host in the same minute, by hyperfine. The host's own figures say little, so it is the ratio that counts; it
// is not judged here, since a busy machine would make that a lottery.
//
// nvidia-ctk is given a copy of the daemon's file: it writes on every run, and would make the daemon stale.
func TestLabConvergedRatio(t *testing.T) {
	each(t, nil, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		n.gpuadm(0, "apply")
		n.ratio(o.String())
	})
}

// ratio prints the times of an apply that has nothing to do beside nvidia-ctk's.
func (n node) ratio(what string) {
	t := n.t
	t.Helper()
	ctk := parts.Get(t, parts.CTK).CTK
	hyperfine, err := exec.LookPath("hyperfine")
	if err != nil {
		const why = "cannot time: hyperfine is missing; apt-get install hyperfine"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	for place, from := range map[string]string{"/usr/local/bin/hyperfine": hyperfine, "/usr/local/bin/nvidia-ctk": ctk.Path} {
		program := must.Get(os.ReadFile(from))(t)
		n.Put(place, string(program), 0o755)
	}
	n.Put("/root/theirs/config.toml", n.Get(config), 0o644)
	const theirs = "nvidia-ctk runtime configure --runtime=containerd --set-as-default --config=/root/theirs/config.toml --drop-in-config=/root/theirs/conf.d/99-nvidia.toml"
	n.Must(strings.Fields(theirs)...)
	pid := n.MainPID(daemon)
	rows := map[string]func(timed) float64{
		"mean": func(x timed) float64 { return x.Mean }, "median": func(x timed) float64 { return x.Median },
		"best": func(x timed) float64 { return x.Min }, "processor": func(x timed) float64 { return x.User + x.System },
	}
	ours, ctks, ratios := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for range 9 { // in turns: a machine is faster in one second than in the next
		n.Must("hyperfine", "--style=none", "--shell=none", "--warmup=5", "--runs=40", "--output=null", "--export-json=/root/times.json", "gpuadm apply", theirs)
		var times struct{ Results []timed }
		if err := json.Unmarshal([]byte(n.Get("/root/times.json")), &times); err != nil || len(times.Results) != 2 {
			t.Fatalf("cannot read hyperfine's answer: %v", err)
		}
		for what, of := range rows {
			a, b := of(times.Results[0]), of(times.Results[1])
			ours[what], ctks[what], ratios[what] = append(ours[what], a), append(ctks[what], b), append(ratios[what], a/b)
		}
	}
	if r := n.gpuadm(0, "apply"); r.Stdout != "Nothing to do.\n" || n.MainPID(daemon) != pid {
		t.Fatalf("what was timed was no apply with nothing to do: %s", r)
	}
	t.Logf("%-10s gpuadm apply with nothing to do   nvidia-ctk %s   ratio (lowest to highest of %d rounds)", what, ctk.Version, len(ratios["mean"]))
	for _, what := range slices.Sorted(maps.Keys(rows)) {
		t.Logf("%-10s %10.2f ms %25.2f ms %17.2f (%.2f to %.2f)", what, middle(ours[what])*1e3, middle(ctks[what])*1e3,
			middle(ratios[what]), slices.Min(ratios[what]), slices.Max(ratios[what]))
	}
}

// timed are hyperfine's seconds for a command.
type timed struct{ Mean, Median, Min, User, System float64 }

func middle(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }
