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
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// both is one state of apt's files, for the simulated programs and for real apt in a folder of its
// own: the same sources, preferences, status.
type both struct {
	t    *testing.T
	sim  *simhost.Node
	root string
}

const (
	simArchive = "http://archive.example/ubuntu/"
	simNVIDIA  = "http://nvidia.example/cuda/"
)

func newBoth(t *testing.T) *both {
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("no apt")
	}
	b := &both{t: t, root: t.TempDir()}
	b.sim = must.Get(simhost.New(must.Get(os.ReadFile("../../pairs/machine.txtar"))(t)))(t)
	Install(b.sim)
	for _, d := range []string{"etc/apt/sources.list.d", "etc/apt/preferences.d", "etc/apt/apt.conf.d", "etc/apt/trusted.gpg.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg", "var/log/apt"} {
		must.OK(t, os.MkdirAll(filepath.Join(b.root, d), 0o755))
	}
	b.put("/var/lib/dpkg/status", "")
	b.put("/etc/apt/sources.list.d/ubuntu.sources", "Types: deb\nURIs: "+simArchive+"\nSuites: noble\nComponents: main universe restricted multiverse\nSigned-By: /k\n")
	b.simPut("/k", "key\n")
	b.simPut("/simulated-net/archive.example/ubuntu/serves", "archive /k\n")
	b.simPut("/simulated-net/nvidia.example/cuda/serves", "nvidia /k\n")
	b.repository("archive", "Origin: Ubuntu\nLabel: Ubuntu\nSuite: noble\nCodename: noble\n", "dists/noble")
	b.repository("nvidia", "Origin: NVIDIA\nLabel: NVIDIA CUDA\nArchitecture: amd64\n", "")
	return b
}

func (b *both) simPut(name, text string) {
	for i, c := range name {
		if c == '/' && i > 0 {
			_ = b.sim.Mkdir(name[:i], host.Attr{Mode: 0o755})
		}
	}
	must.OK(b.t, b.sim.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
}

// put writes a file to both. Real apt fetches from a folder, and trusts it.
func (b *both) put(name, text string) {
	b.simPut(name, text)
	text = strings.NewReplacer(simArchive, "file:"+b.root+"/srv/archive/", simNVIDIA, "file:"+b.root+"/srv/nvidia/", "Signed-By: /k\n", "Trusted: yes\n").Replace(text)
	must.OK(b.t, os.WriteFile(b.root+name, []byte(text), 0o644))
}

func (b *both) repository(name, release, dists string) {
	at := filepath.Join(b.root, "srv", name)
	lists := map[string]*strings.Builder{}
	e := editions()[name]
	for _, n := range slices.Sorted(maps.Keys(e.packages)) {
		for _, p := range e.packages[n] {
			rel := ""
			if dists != "" {
				rel = p.Component + "/binary-amd64/"
			}
			if lists[rel] == nil {
				lists[rel] = &strings.Builder{}
			}
			w := lists[rel]
			w.WriteString(paragraph(p))
			fmt.Fprintf(w, "Filename: pool/%s_%s.deb\nSize: 1000\nSHA256: %x\n\n", n, strings.ReplaceAll(p.Version, ":", "%3a"), sha256.Sum256([]byte(n+p.Version)))
		}
	}
	if dists != "" {
		for _, c := range []string{"main", "universe", "restricted", "multiverse"} {
			if rel := c + "/binary-amd64/"; lists[rel] == nil {
				lists[rel] = &strings.Builder{}
			}
		}
		release += "Components: main universe restricted multiverse\nArchitectures: amd64\n"
	}
	release += "Date: Sat, 28 Nov 2026 00:00:00 UTC\nSHA256:\n"
	for rel, w := range lists {
		dir := filepath.Join(at, dists, rel)
		must.OK(b.t, os.MkdirAll(dir, 0o755))
		must.OK(b.t, os.WriteFile(dir+"/Packages", []byte(w.String()), 0o644))
		release += fmt.Sprintf(" %x %d %sPackages\n", sha256.Sum256([]byte(w.String())), w.Len(), rel)
	}
	must.OK(b.t, os.WriteFile(filepath.Join(at, dists, "Release"), []byte(release), 0o644))
}

// paragraph is a package as an index has it: what the lab's debs are built with.
func paragraph(p *pkg) string {
	var w strings.Builder
	fmt.Fprintf(&w, "Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: x <x@example>\nDescription: x\n", p.Name, p.Version)
	list := func(key string, l []string) {
		if len(l) > 0 {
			fmt.Fprintf(&w, "%s: %s\n", key, strings.Join(l, ", "))
		}
	}
	list("Pre-Depends", p.PreDepends)
	list("Depends", p.Depends)
	list("Provides", slices.Concat(p.Provides, p.Instead))
	list("Conflicts", slices.Concat(p.Conflicts, p.Instead))
	list("Replaces", p.Instead)
	return w.String()
}

func (b *both) installed(names ...string) {
	text := ""
	for _, n := range names {
		name, version, _ := strings.Cut(n, "=")
		text += strings.Replace(paragraph(known(name, version)), "\nVersion:", "\nStatus: install ok installed\nVersion:", 1) + "\n"
	}
	b.put("/var/lib/dpkg/status", text)
}

func (b *both) real(argv ...string) (string, int) {
	argv = append([]string{argv[0], "-o", "Dir=" + b.root, "-o", "Dir::State::status=" + b.root + "/var/lib/dpkg/status", "-o", "Dir::Etc::trusted=" + b.root + "/k", "-o", "APT::Architecture=amd64", "-o", "APT::Architectures=amd64",
		"-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none", "-o", "Debug::NoLocking=1", "-o", "Dir::Bin::dpkg=/usr/bin/dpkg"}, argv[1:]...)
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "APT_CONFIG=/dev/null", "DEBIAN_FRONTEND=noninteractive"}
	out, _ := c.CombinedOutput()
	return string(out), c.ProcessState.ExitCode()
}

func (b *both) simulated(argv ...string) (string, int) {
	do := programs()[argv[0]]
	out, err := run(do, b.files(), argv)
	if err != nil {
		return string(out) + err.Error(), 100
	}
	return string(out), 0
}

func (b *both) files() *files.Files { return b.sim.Files }

func (b *both) update() {
	out, code := b.real("apt-get", "update")
	must.That(b.t, code == 0, "real update: %d\n%s", code, out)
	out, code = b.simulated("apt-get", "update")
	must.That(b.t, code == 0, "simulated update: %d\n%s", code, out)
}

var candidate = regexp.MustCompile(`(?m)^(\S+):\n  Installed: .*\n  Candidate: (.*)$`)

// candidates compares the candidate of every name.
func (b *both) candidates(what string) {
	names := map[string]bool{}
	for _, e := range []string{"archive", "nvidia"} {
		for n := range editions()[e].packages {
			names[n] = true
		}
	}
	ask := append([]string{"apt-cache", "policy"}, slices.Sorted(maps.Keys(names))...)
	read := func(out string) map[string]string {
		all := map[string]string{}
		for _, m := range candidate.FindAllStringSubmatch(out, -1) {
			all[m[1]] = m[2]
		}
		return all
	}
	realOut, _ := b.real(ask...)
	simOut, _ := b.simulated(ask...)
	r, s := read(realOut), read(simOut)
	var other []string
	for n := range names {
		if r[n] != s[n] {
			other = append(other, fmt.Sprintf("%s: apt %q, simulated %q", n, r[n], s[n]))
		}
	}
	slices.Sort(other)
	b.t.Logf("%s: %d names, %d with another candidate", what, len(names), len(other))
	if len(other) > 0 {
		b.t.Errorf("%s: %d of %d candidates differ:\n%s", what, len(other), len(names), strings.Join(other[:min(6, len(other))], "\n"))
	}
}

const nvidiaSource = "Types: deb\nURIs: " + simNVIDIA + "\nSuites: /\nSigned-By: /k\n"

func TestSimPins(t *testing.T) {
	for _, pin := range []string{"release l=NVIDIA CUDA", "release o=Ubuntu", "release o=NVIDIA", "version 580.*", "release n=noble", "release o=Ubuntu,n=noble", "release a=noble"} {
		t.Run(pin, func(t *testing.T) {
			b := newBoth(t)
			b.put("/etc/apt/sources.list.d/nvidia.sources", nvidiaSource)
			b.put("/etc/apt/preferences.d/p", "Package: nvidia-* libnvidia-* cuda-drivers*\nPin: "+pin+"\nPin-Priority: -1\n")
			b.update()
			b.candidates(pin)
		})
	}
}

func TestSimSources(t *testing.T) {
	for name, text := range map[string]string{
		"as it is":       nvidiaSource,
		"Enabled: no":    "Enabled: no\n" + nvidiaSource,
		"continued":      "Types: deb\nURIs:\n " + simNVIDIA + "\nSuites: /\nSigned-By: /k\n",
		"Types: deb-src": "Types: deb-src\nURIs: " + simNVIDIA + "\nSuites: /\nSigned-By: /k\n",
		"architecture":   nvidiaSource + "Architectures: arm64\n",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoth(t)
			b.put("/etc/apt/sources.list.d/nvidia.sources", text)
			b.real("apt-get", "update")
			b.simulated("apt-get", "update")
			b.candidates(name)
		})
	}
}

var plannedLine = regexp.MustCompile(`(?m)^(Inst|Remv) (\S+)(?: \[[^\]]*\])?(?: \((\S+))?`)

// TestSimDowngrade: does the same call succeed?
func TestSimCalls(t *testing.T) {
	b := newBoth(t)
	b.put("/etc/apt/sources.list.d/nvidia.sources", nvidiaSource)
	b.update()
	var name, old, newer string
	for n, list := range editions()["nvidia"].packages {
		if strings.HasPrefix(n, "nvidia-firmware") || n == "libnvidia-cfg1-580" || n == "nvidia-persistenced" {
			for _, p := range list {
				if len(list) > 1 && len(p.Depends) == 0 {
					vs := []string{}
					for _, q := range list {
						vs = append(vs, q.Version)
					}
					slices.SortFunc(vs, compare)
					name, old, newer = n, vs[0], vs[len(vs)-1]
				}
			}
		}
	}
	t.Logf("%s %s %s", name, old, newer)
	b.installed(name + "=" + newer)
	for _, c := range [][]string{
		{"apt-get", "-y", "install", "--print-uris", "--allow-downgrades", name + "=" + old},
		{"apt-get", "-y", "install", "--print-uris", name + "=" + old},
		{"apt-get", "-y", "install", "--print-uris", name},
		{"apt-get", "-y", "install", "--print-uris", "--no-remove", name + "-"},
		{"apt-get", "-y", "install", "--print-uris", "--no-such-flag", name + "=" + newer},
	} {
		ro, rc := b.real(c...)
		so, sc := b.simulated(c...)
		if (rc == 0) != (sc == 0) {
			t.Errorf("%s\napt: exit %d\n%s\nsimulated: exit %d\n%s", strings.Join(c, " "), rc, tail(ro), sc, tail(so))
		} else {
			t.Logf("same: %s (%d, %d)", strings.Join(c, " "), rc, sc)
		}
	}
}

func tail(s string) string {
	if len(s) > 400 {
		return "…" + s[len(s)-400:]
	}
	return s
}

// TestSimSolver: what would be installed for NAME=VERSION, for each package of the listings.
func TestSimSolver(t *testing.T) {
	b := newBoth(t)
	b.put("/etc/apt/sources.list.d/nvidia.sources", nvidiaSource)
	b.update()
	asked, differ := 0, 0
	for _, e := range []string{"nvidia", "archive"} {
		for _, n := range slices.Sorted(maps.Keys(editions()[e].packages)) {
			for i, p := range editions()[e].packages[n] {
				if i%5 != 0 || len(p.Depends) < 2 {
					continue
				}
				asked++
				ro, rc := b.real("apt-get", "-s", "-y", "--no-install-recommends", "install", n+"="+p.Version)
				var r, s []string
				for _, m := range plannedLine.FindAllStringSubmatch(ro, -1) {
					r = append(r, m[1]+" "+m[2]+" "+m[3])
				}
				so, sc := b.simulated("apt-get", "-y", "--print-uris", "install", n+"="+p.Version)
				for _, m := range regexp.MustCompile(`(?m)installed:\n   (\S+) \((\S+)\)`).FindAllStringSubmatch(so, -1) {
					s = append(s, "Inst "+m[1]+" "+m[2])
				}
				slices.Sort(r)
				slices.Sort(s)
				if (rc == 0) != (sc == 0) || rc == 0 && !slices.Equal(r, s) {
					if differ++; differ < 6 {
						var onlyR, onlyS []string
						for _, x := range r {
							if !slices.Contains(s, x) {
								onlyR = append(onlyR, x)
							}
						}
						for _, x := range s {
							if !slices.Contains(r, x) {
								onlyS = append(onlyS, x)
							}
						}
						t.Errorf("%s=%s: apt %d, simulated %d\nonly apt: %q\nonly simulated: %q\n%s\n%s", n, p.Version, rc, sc, onlyR, onlyS, map[bool]string{true: tail(ro)}[rc != 0], map[bool]string{true: tail(so)}[sc != 0])
					}
				}
			}
		}
	}
	t.Logf("%d asked, %d differ", asked, differ)
}
