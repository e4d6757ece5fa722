// SPDX-License-Identifier: Apache-2.0

package ubuntu

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// The simulated apt is a claim about apt. These tests put one state before both, the same sources,
// preferences and database of packages, ask both the same question, and compare the answers. Real
// apt works on a folder of its own, and needs no root. A difference is a fault of the simulation.

// pair is the simulated machine, and the folder that real apt takes for its machine.
type pair struct {
	t    *testing.T
	sim  *simhost.Node
	root string
}

// The addresses of the two repositories, as the simulated machine names them.
const (
	archive = "http://archive.example/ubuntu/"
	nvidia  = "http://nvidia.example/cuda/"
)

// settings are read before all other files of settings: APT_CONFIG in apt.conf(5).
const settings = "/apt.conf"

const nvidiaSource = "Types: deb\nURIs: " + nvidia + "\nSuites: /\nSigned-By: /key\n"

// newPair makes a machine that has no package, and knows Ubuntu's archive.
func newPair(t *testing.T) *pair {
	t.Helper()
	if _, err := exec.LookPath("apt-get"); err != nil {
		must.That(t, os.Getenv("CI") != "true", "%v", err)
		t.Skip("apt is not installed")
	}
	p := &pair{t: t, root: t.TempDir()}
	p.sim = must.Get(simhost.New(must.Get(os.ReadFile("../../pairs/machine.txtar"))(t)))(t)
	Install(p.sim)

	for _, dir := range []string{
		"etc/apt/sources.list.d", "etc/apt/preferences.d", "etc/apt/apt.conf.d", "etc/apt/trusted.gpg.d",
		"var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt",
		"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers",
	} {
		must.OK(t, os.MkdirAll(filepath.Join(p.root, dir), 0o755))
	}

	must.OK(t, os.WriteFile(p.root+settings, fmt.Appendf(nil, `
		Dir "%[1]s";
		Dir::State::status "%[1]s%[2]s";
		Dir::Bin::dpkg "/usr/bin/dpkg";
		Dir::Cache::pkgcache ""; // apt would take a database of the same size and second for the last one
		DPkg::Options:: "--admindir=%[1]s%[3]s";
		APT::Architecture "amd64";
		APT::Architectures "amd64";
		APT::Sandbox::User "root";
		Acquire::Languages "none";
		Debug::NoLocking "1";
	`, p.root, status, filepath.Dir(status)), 0o644))
	p.put(status, "")
	p.put("/etc/apt/sources.list.d/ubuntu.sources", "Types: deb\nURIs: "+archive+"\nSuites: noble\nComponents: main universe restricted multiverse\nSigned-By: /key\n")

	p.putSimulated("/key", "key\n")
	p.putSimulated("/simulated-net/archive.example/ubuntu/serves", "archive /key\n")
	p.putSimulated("/simulated-net/nvidia.example/cuda/serves", "nvidia /key\n")
	p.repository("archive", "Origin: Ubuntu\nLabel: Ubuntu\nSuite: noble\nCodename: noble\n", "dists/noble")
	p.repository("nvidia", "Origin: NVIDIA\nLabel: NVIDIA CUDA\nArchitecture: amd64\n", "")
	return p
}

// newNVIDIAPair makes a machine that knows NVIDIA's repository too, and has read all lists.
func newNVIDIAPair(t *testing.T) *pair {
	t.Helper()
	p := newPair(t)
	p.put("/etc/apt/sources.list.d/nvidia.sources", nvidiaSource)
	p.update()
	return p
}

func (p *pair) putSimulated(name, text string) {
	p.t.Helper()
	m := &machine{Files: p.sim.Files}
	must.OK(p.t, m.folders(filepath.Dir(name)))
	must.OK(p.t, p.sim.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
}

// put writes a file for both. Real apt reads each repository in a folder, and trusts it.
func (p *pair) put(name, text string) {
	p.t.Helper()
	p.putSimulated(name, text)
	local := strings.NewReplacer(
		archive, "file:"+p.root+"/srv/archive/",
		nvidia, "file:"+p.root+"/srv/nvidia/",
		"Signed-By: /key\n", "Trusted: yes\n",
	)
	must.OK(p.t, os.MkdirAll(filepath.Dir(p.root+name), 0o755))
	must.OK(p.t, os.WriteFile(p.root+name, []byte(local.Replace(text)), 0o644))
}

// repository writes for real apt what an edition of the simulated net serves: the indexes, and the
// Release file over them.
func (p *pair) repository(name, release, dists string) {
	p.t.Helper()
	indexes := map[string]*strings.Builder{}
	if dists == "" {
		indexes[""] = &strings.Builder{}
	} else {
		release += "Components: main universe restricted multiverse\nArchitectures: amd64\n"
		for _, component := range []string{"main", "universe", "restricted", "multiverse"} {
			indexes[component+"/binary-amd64/"] = &strings.Builder{}
		}
	}

	offered := editions()[name].packages
	for _, of := range slices.Sorted(maps.Keys(offered)) {
		for _, one := range offered[of] {
			folder := ""
			if dists != "" {
				folder = one.Component + "/binary-amd64/"
			}
			file := of + "_" + strings.ReplaceAll(one.Version, ":", "%3a") + ".deb"
			fmt.Fprintf(indexes[folder], "%sFilename: pool/%s\nSize: 1000\nSHA256: %x\n\n", paragraph(one), file, sha256.Sum256([]byte(of+one.Version)))
		}
	}

	at := filepath.Join(p.root, "srv", name, dists)
	release += "Date: Sat, 28 Nov 2026 00:00:00 UTC\nSHA256:\n"
	for folder, index := range indexes {
		must.OK(p.t, os.MkdirAll(filepath.Join(at, folder), 0o755))
		must.OK(p.t, os.WriteFile(filepath.Join(at, folder, "Packages"), []byte(index.String()), 0o644))
		release += fmt.Sprintf(" %x %d %sPackages\n", sha256.Sum256([]byte(index.String())), index.Len(), folder)
	}

	must.OK(p.t, os.WriteFile(filepath.Join(at, "Release"), []byte(release), 0o644))
}

// has gives the machine packages, each NAME=VERSION or NAME=VERSION STATUS, where the status is one
// of the database's: "hold ok installed".
func (p *pair) has(list ...string) {
	p.t.Helper()
	var text strings.Builder
	for _, one := range list {
		what, state, said := strings.Cut(one, " ")
		name, version, _ := strings.Cut(what, "=")
		if !said {
			state = "install ok installed"
		}
		text.WriteString(strings.Replace(paragraph(known(name, version)), "\nVersion:", "\nStatus: "+state+"\nVersion:", 1) + "\n")
	}

	p.put(status, text.String())
}

// real runs a program of real apt, and returns what it printed and its exit code.
func (p *pair) real(argv ...string) (out string, exit int) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "APT_CONFIG=" + p.root + settings, "DEBIAN_FRONTEND=noninteractive"}
	output, _ := cmd.CombinedOutput()
	return string(output), cmd.ProcessState.ExitCode()
}

// simulated runs the program that the simulated machine has in its place.
func (p *pair) simulated(argv ...string) (out string, exit int) {
	output, err := run(programs()[argv[0]], p.sim.Files, argv)
	if err != nil {
		return string(output) + err.Error(), 100
	}
	return string(output), 0
}

// update reads the lists. What both answer is compared too: whether they could.
func (p *pair) update() {
	p.t.Helper()
	realOut, realExit := p.real("apt-get", "update")
	simOut, simExit := p.simulated("apt-get", "update")
	must.That(p.t, (realExit == 0) == (simExit == 0), "update: apt exits with %d\n%s\nsimulated %d\n%s", realExit, end(realOut), simExit, end(simOut))
}

var candidate = regexp.MustCompile(`(?m)^(\S+):\n  Installed: (.*)\n  Candidate: (.*)$`)

// policy compares of every name which version is installed, and which one apt would install.
func (p *pair) policy() {
	p.t.Helper()
	names := slices.Concat(slices.Collect(maps.Keys(editions()["archive"].packages)), slices.Collect(maps.Keys(editions()["nvidia"].packages)))
	slices.Sort(names)
	names = slices.Compact(names)
	ask := append([]string{"apt-cache", "policy"}, names...)
	realOut, _ := p.real(ask...)
	simOut, _ := p.simulated(ask...)
	must.That(p.t, candidate.MatchString(realOut), "apt knows no package:\n%s", end(realOut))
	want, got := candidate.FindAllString(realOut, -1), candidate.FindAllString(simOut, -1)
	both := slices.DeleteFunc(slices.Clone(want), func(one string) bool {
		return !slices.Contains(got, one)
	})
	only := func(of []string) []string {
		return slices.DeleteFunc(of, func(one string) bool {
			return slices.Contains(both, one)
		})
	}

	check.List(p.t, only(got), only(want), "of %d names the simulated apt says", len(names))
}

// outcome is what a call would do: each package that is installed or removed, with its version.
// nil is a refusal.
type outcome []string

var (
	realStep      = regexp.MustCompile(`(?m)^(Inst|Remv) (\S+)(?: \[(\S+)\])?(?: \((\S+))?`)
	simulatedStep = regexp.MustCompile(`(REMOVED|upgraded|installed):\n   (\S+) \((?:\S+ => )?(\S+)\)`)
)

// call compares what one call of apt-get would do.
func (p *pair) call(args ...string) outcome {
	p.t.Helper()
	realOut, realExit := p.real(slices.Concat([]string{"apt-get", "-s", "-y", "--no-install-recommends"}, args)...)
	simOut, simExit := p.simulated(slices.Concat([]string{"apt-get", "-y", "--print-uris"}, args)...)

	var want, got outcome
	if realExit == 0 {
		want = outcome{}
		for _, m := range realStep.FindAllStringSubmatch(realOut, -1) {
			if m[1] == "Remv" {
				want = append(want, "remove "+m[2]+" "+m[3])
			} else {
				want = append(want, "install "+m[2]+" "+m[4])
			}
		}
	}

	if simExit == 0 {
		got = outcome{}
		for _, m := range simulatedStep.FindAllStringSubmatch(simOut, -1) {
			if m[1] == "REMOVED" {
				got = append(got, "remove "+m[2]+" "+m[3])
			} else {
				got = append(got, "install "+m[2]+" "+m[3])
			}
		}
	}

	slices.Sort(want)
	slices.Sort(got)
	if (want == nil) != (got == nil) || !slices.Equal(want, got) {
		p.t.Errorf("apt-get %s\napt (exit %d): %q\n%s\nsimulated (exit %d): %q\n%s", strings.Join(args, " "), realExit, want, end(realOut), simExit, got, end(simOut))
	}
	return want
}

func end(text string) string {
	if len(text) > 400 {
		return "…" + text[len(text)-400:]
	}
	return text
}

// TestPins: a pin names packages by any of the repository's own words.
func TestPins(t *testing.T) {
	t.Parallel()
	for _, pin := range []string{
		"release l=NVIDIA CUDA", "release o=Ubuntu", "release o=NVIDIA",
		"release n=noble", "release o=Ubuntu,n=noble", "release a=noble",
		"version 580.*",
	} {
		t.Run(pin, func(t *testing.T) {
			p := newPair(t)
			p.put("/etc/apt/sources.list.d/nvidia.sources", nvidiaSource)
			p.put("/etc/apt/preferences.d/p", "Package: nvidia-* libnvidia-* cuda-drivers*\nPin: "+pin+"\nPin-Priority: -1\n")
			p.update()
			p.policy()
		})
	}
}

// TestSources: which entries of a file of sources count.
func TestSources(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"plain":        nvidiaSource,
		"disabled":     "Enabled: no\n" + nvidiaSource,
		"continued":    "Types: deb\nURIs:\n " + nvidia + "\nSuites: /\nSigned-By: /key\n",
		"source code":  "Types: deb-src\nURIs: " + nvidia + "\nSuites: /\nSigned-By: /key\n",
		"architecture": nvidiaSource + "Architectures: arm64\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			p.put("/etc/apt/sources.list.d/nvidia.sources", text)
			p.real("apt-get", "update") // apt refuses a list of the wrong architecture, and goes on
			p.simulated("apt-get", "update")
			p.policy()
		})
	}
}
