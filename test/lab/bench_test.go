// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestBenchDriver prints the processor time and the time by the clock of an install of driver,
// toolkit and containerd's configuration, of a second apply, and of a driver's upgrade: by gpuadm,
// and by the shell commands that one careful person would write, on two hosts with the same
// repository and Debian's own lists, which apt reads whenever it is asked. Who begins alternates.
// The lab's packages are small and near, so real ones have the ratios closer to 1. The figures are
// not judged here; that both install the same packages is.
func TestBenchDriver(t *testing.T) {
	lab.Asked(t)
	const rounds = 4
	for _, c := range []struct {
		what    string
		headers bool
		stages  string // the others prove a build
	}{
		{"no module is built", false, " sources packages runtime"},
		{"dkms builds a small module", true, ""},
	} {
		costs := map[string][]cost{} // WHAT by WHOM
		for i := range rounds {
			t.Run("round", func(t *testing.T) { // its hosts go when it ends
				a, b := bootBench(t, c.headers), bootBench(t, c.headers)
				apply := "gpuadm apply" + c.stages
				ours := func() {
					costs["install gpuadm"] = append(costs["install gpuadm"], a.costs(apply))
					costs["second gpuadm"] = append(costs["second gpuadm"], a.costs(apply))
					a.Put(specFile, a.spec("580.95.05", "1.18.0")+"[runtime]\nset_as_default = true\n", 0o644)
					costs["upgrade gpuadm"] = append(costs["upgrade gpuadm"], a.costs(apply))
				}

				theirs := func() {
					costs["install shell"] = append(costs["install shell"], b.costs(b.shell()))
					costs["upgrade shell"] = append(costs["upgrade shell"], b.costs(b.shellUpgrade()))
				}

				if i%2 == 0 {
					ours()
					theirs()
				} else {
					theirs()
					ours()
				}

				if x, y := a.installed(), b.installed(); !maps.Equal(x, y) {
					t.Errorf("gpuadm installs %v, the shell %v", x, y)
				}
			})
		}

		if t.Failed() {
			return
		}
		t.Logf("%s: medians of %d, processor time (by the clock)", c.what, rounds)
		for _, what := range []string{"install", "upgrade"} {
			a, b := medians(costs[what+" gpuadm"]), medians(costs[what+" shell"])
			t.Logf("%-8s gpuadm %6.2f s (%5.2f s)   shell %6.2f s (%5.2f s)   ratio %.2f (%.2f)", what, a.cpu, a.wall, b.cpu, b.wall, a.cpu/b.cpu, a.wall/b.wall)
		}

		again := medians(costs["second gpuadm"])
		t.Logf("second   gpuadm %6.3f s (%5.3f s)", again.cpu, again.wall)
		if c.headers {
			t.Run("ratio", func(t *testing.T) {
				n := bootBench(t, true)
				n.costs("gpuadm apply")
				n.ratio("with a driver, its modules and the toolkit:")
			})
		}
	}
}

func bootBench(t *testing.T, headers bool) driverNode {
	t.Helper()
	const archive = "/srv/debian"
	o := lab.Options{
		Dist:    "bookworm",
		Headers: headers,
		Files:   map[string]string{},
	}
	for name, file := range debianLists(t) {
		o.Files[archive+"/"+name] = file
	}
	n := bootDriver(t, o)
	if !headers { // so that Debian's are not installed to build nothing
		for _, name := range []string{"gcc", "make"} {
			emptyPackage(n.Host, name)
		}
	} else {
		n.Put("/lib/modules/"+headersOf(t, n.Host)+"/modules.dep", "", 0o644) // so that it counts as a kernel
	}

	n.Put("/etc/apt/apt.conf.d/99languages", "Acquire::Languages \"none\";\n", 0o644) // for both: gpuadm asks for no translations
	// Its lists alone are there, so none of its packages may be chosen.
	n.Put("/etc/apt/preferences.d/debian", "Package: *\nPin: release o=Debian\nPin-Priority: -1\n", 0o644)
	n.Put("/etc/apt/sources.list.d/debian.list", "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] file:"+archive+" bookworm main\n", 0o644)
	n.Must("apt-get", "-q", "update")
	program := must.Get(os.ReadFile(parts.Get(t, parts.CTK).CTK.Path))(t)
	n.Put("/usr/local/bin/nvidia-ctk", string(program), 0o755)
	n.Put(specFile, n.spec("580.65.06", "1.18.0")+"[runtime]\nset_as_default = true\n", 0o644)
	n.answers()
	return n
}

// debianLists are the lists of Debian's archive, by their names in it, as files of this machine.
func debianLists(t *testing.T) map[string]string {
	t.Helper()
	names := []string{"dists/bookworm/InRelease", "dists/bookworm/main/binary-amd64/Packages.xz"}
	place := filepath.Join(must.Get(lab.CacheDir())(t), "lists-bookworm")
	lab.Have(t, lab.Cached(place, func(scratch string) error {
		mirror, err := parts.DebianMirror(t.Context())
		for i, name := range names {
			if err == nil {
				_, err = parts.Run(t.Context(), scratch, nil, "/usr/lib/apt/apt-helper", "download-file", mirror+"/"+name, strconv.Itoa(i))
			}
		}

		return err
	}))
	files := map[string]string{}
	for i, name := range names {
		files[name] = filepath.Join(place, strconv.Itoa(i))
	}
	return files
}

// shell is the same by hand: every package in its exact version, since apt takes the newest of
// those that are not named.
func (n driverNode) shell() string {
	set := slices.Concat(driverSet("580.65.06"), repos.DebSet("580.65.06", "libnvidia-encode1"), toolkitSet())
	return "export DEBIAN_FRONTEND=noninteractive\n" +
		"cat >/etc/apt/sources.list.d/nvidia.list <<'E'\n" + repos.AptSources(repos.Mirror, "bookworm", repos.Keyring) + "E\n" +
		"apt-get -q update\n" +
		"apt-get -q -y install " + strings.Join(set, " ") + "\n" +
		"apt-mark hold " + strings.Join(names(set), " ") + "\n" +
		"nvidia-ctk runtime configure --runtime=containerd --set-as-default\n" +
		"systemctl restart containerd\n"
}

func (n driverNode) shellUpgrade() string {
	set := slices.Concat(driverSet("580.95.05"), repos.DebSet("580.95.05", "libnvidia-encode1"))
	return "export DEBIAN_FRONTEND=noninteractive\n" +
		"apt-get -q update\n" +
		"apt-get -q -y --allow-change-held-packages install " + strings.Join(set, " ") + "\n" +
		"apt-mark hold " + strings.Join(names(set), " ") + "\n"
}

func toolkitSet() []string {
	return repos.DebSet("1.18.0", "nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")
}

// A cost is what a script took, in seconds: of the clock, and of the processor with all its
// children.
type cost struct{ wall, cpu float64 }

var timesOf = regexp.MustCompile(`real ([0-9.]+)\nuser ([0-9.]+)\nsys ([0-9.]+)`)

// costs runs a script that has to exit with 0, or with 4 where gpuadm asks for a reboot: the kernel
// that runs is not among the host's.
func (n driverNode) costs(script string) cost {
	n.t.Helper()
	n.Put("/run/script", "set -e\n"+script, 0o644)
	n.Must("sync")
	r := n.Exec("bash", "-c", "TIMEFORMAT=$'real %R\nuser %U\nsys %S'; time sh /run/script")
	m := timesOf.FindStringSubmatch(r.Stderr)
	if r.Exit != 0 && (r.Exit != 4 || !strings.HasPrefix(script, "gpuadm ")) || m == nil {
		n.t.Fatalf("%s: %s", script, r)
	}
	seconds := func(i int) float64 { return must.Get(strconv.ParseFloat(m[i], 64))(n.t) }
	return cost{seconds(1), seconds(2) + seconds(3)}
}

func medians(list []cost) cost {
	var wall, cpu []float64
	for _, c := range list {
		wall, cpu = append(wall, c.wall), append(cpu, c.cpu)
	}
	return cost{middle(wall), middle(cpu)}
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

// TestLabConvergedRatio prints how long an apply takes that has nothing to do, beside nvidia-ctk
// runtime configure on the same live host in the same minute, by hyperfine. The host's own figures
// say little, so it is the ratio that counts; it is not judged here, since a busy machine would
// make that a lottery.
//
// nvidia-ctk is given a copy of the daemon's file: it writes on every run, and would make the
// daemon stale.
func TestLabConvergedRatio(t *testing.T) {
	lab.Nightly(t)
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
	hyperfine := must.Get(exec.LookPath("hyperfine"))(t)
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
		// gpuadm's exit code may be 4: see rebooted.
		n.Must("hyperfine", "--style=none", "--shell=none", "--ignore-failure", "--warmup=5", "--runs=40", "--output=null", "--export-json=/root/times.json", "gpuadm apply", theirs)
		var times struct{ Results []timed }
		if err := json.Unmarshal([]byte(n.Get("/root/times.json")), &times); err != nil || len(times.Results) != 2 {
			t.Fatalf("cannot read hyperfine's answer: %v", err)
		}
		for what, of := range rows {
			a, b := of(times.Results[0]), of(times.Results[1])
			ours[what], ctks[what], ratios[what] = append(ours[what], a), append(ctks[what], b), append(ratios[what], a/b)
		}
	}

	// Where no driver answers, the CDI spec waits for it: "Nothing to do now; …".
	r := n.gpuadm(0, "apply")
	if !strings.HasPrefix(r.Stdout, "Nothing to do") || n.MainPID(daemon) != pid {
		t.Fatalf("what was timed was not an apply with nothing to do: %s", r)
	}
	t.Logf("%-10s gpuadm apply with nothing to do   nvidia-ctk %s   ratio (lowest to highest of %d rounds)", what, ctk.Version, len(ratios["mean"]))
	for _, what := range slices.Sorted(maps.Keys(rows)) {
		t.Logf("%-10s %10.2f ms %25.2f ms %17.2f (%.2f to %.2f)", what, middle(ours[what])*1e3, middle(ctks[what])*1e3,
			middle(ratios[what]), slices.Min(ratios[what]), slices.Max(ratios[what]))
	}
}

// timed are hyperfine's seconds for a command.
type timed struct{ Mean, Median, Min, User, System float64 }

func middle(all []float64) float64 {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}
