// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// matrixFile has one line for each cell of the matrix; -matrix writes it.
const matrixFile = "testdata/matrix.txt"

var writeMatrix = flag.Bool("matrix", false, "write "+matrixFile)

// matrixDistro is a distribution of the matrix, on which host it is shown, and what it says of
// itself.
type matrixDistro struct {
	name, dist, release string
	sources             []string
}

func matrixDistros() []matrixDistro {
	debian := func(version, codename string) string {
		return fmt.Sprintf("ID=debian\nVERSION_ID=%q\nVERSION_CODENAME=%s\nPRETTY_NAME=\"Debian %s\"\n", version, codename, version)
	}
	rpm := func(id, version, platform string) string {
		return fmt.Sprintf("ID=%q\nID_LIKE=\"fedora\"\nVERSION_ID=%q\nPLATFORM_ID=%q\nPRETTY_NAME=\"%s %s\"\n", id, version, platform, id, version)
	}
	both := []string{"nvidia", "distro"}
	list := []matrixDistro{
		{"debian12", "bookworm", debian("12", "bookworm"), both},
		{"debian13", "trixie", debian("13", "trixie"), both},
		{"rhel8", lab.RHELish, rpm("rhel", "8.10", "platform:el8"), both[:1]},
		{"rhel9", lab.RHELish, rpm("rhel", "9.4", "platform:el9"), both[:1]},
		{"rhel10", lab.RHELish, rpm("rhel", "10.0", "platform:el10"), both[:1]},
		{"amzn2023", lab.RHELish, rpm("amzn", "2023", "platform:al2023"), both[:1]},
		{"azl3", lab.RHELish, rpm("azurelinux", "3.0", "platform:azl3"), both[:1]},
	}
	for _, distro := range []string{"ubuntu2204", "ubuntu2404", "ubuntu2604"} {
		list = append(list, matrixDistro{distro, "bookworm", releases(distro), both})
	}
	if !wholeMatrix() {
		list = slices.DeleteFunc(list, func(d matrixDistro) bool {
			return !slices.Contains([]string{"ubuntu2404", "debian12", "rhel9"}, d.name)
		})
	}

	return list
}

// wholeMatrix says whether all distributions and branches are gone through: make nightly sets
// LAB_ALL.
func wholeMatrix() bool { return check.All() || *writeMatrix }

// matrixBranches is the long-term branch; make nightly takes all.
func matrixBranches() []string {
	if !wholeMatrix() {
		return []string{"580"}
	}
	return []string{"535", "550", "570", "575", "580", "590", "595", "610"}
}

// matrixGPUs are the kinds, the last of which is really installed for. A GB200 is in an arm64
// machine and the lab's hosts are amd64: what is asked for is the same, but for libnvsdm, which
// arm64 lacks.
func matrixGPUs() []string { return []string{"T4", "B200", "GB200", "HGX H100"} }

// TestLabMatrix: each cell of distributions, branches, GPUs and sources either is planned, with the
// real package manager's simulation on a repository made of the listing, or is refused in a
// sentence; one cell of each distribution, source and branch is installed. The golden file says
// which, and what is asked for: go test ./test/lab -run TestLabMatrix -count=1 -args -matrix writes
// it.
func TestLabMatrix(t *testing.T) {
	t.Parallel()
	lab.Asked(t)
	var lock sync.Mutex
	var lines []string
	say := func(line string) {
		lock.Lock()
		defer lock.Unlock()
		lines = append(lines, line)
	}

	t.Run("distributions", func(t *testing.T) {
		for _, d := range matrixDistros() {
			for _, source := range d.sources {
				t.Run(d.name+" "+source, func(t *testing.T) {
					t.Parallel()
					m := &matrixHost{d: d, source: source, say: say}
					m.dir = repos.For(t, m.kind(), repos.Recipe{})
					for _, branch := range matrixBranches() {
						t.Run(branch, func(t *testing.T) { // the host ends with it
							m.boot(t)
							m.branch(t, branch)
						})
					}
				})
			}
		}
	})
	slices.Sort(lines)
	text := strings.Join(lines, "\n") + "\n"
	t.Logf("%d cells:\n%s", len(lines), text)
	if t.Failed() {
		return
	}
	if *writeMatrix {
		must.OK(t, os.WriteFile(matrixFile, []byte(text), 0o644))
		return
	}
	golden := must.Get(os.ReadFile(matrixFile))(t)
	was := strings.Split(string(golden), "\n")
	for _, line := range strings.Split(text, "\n") {
		check.That(t, slices.Contains(was, line), "not in %s: %s", matrixFile, line)
	}
	for _, line := range was {
		cell := append(strings.Fields(line), "", "", "") // distribution, source, branch
		asked := slices.ContainsFunc(matrixDistros(), func(d matrixDistro) bool {
			return d.name == cell[0]
		}) && slices.Contains(matrixBranches(), cell[2])
		check.That(t, !asked || strings.Contains(text, line+"\n"), "%s has, and the host has not: %s", matrixFile, line)
	}
}

// matrixHost is one host of the matrix.
type matrixHost struct {
	d      matrixDistro
	source string
	dir    string
	say    func(string)
	*lab.Host
}

// kind is which of the lab's repositories it needs.
func (m *matrixHost) kind() string {
	switch {
	case m.source == "distro" && strings.HasPrefix(m.d.name, "debian"):
		return m.d.name + "-archive"
	case m.d.name == "debian13":
		return "debian12" // NVIDIA's packages for the two are the same
	}
	return m.d.name
}

func (m *matrixHost) apt() bool { return m.d.dist != lab.RHELish }

// boot gives it a fresh host.
func (m *matrixHost) boot(t *testing.T) {
	t.Helper()
	m.Host = lab.Boot(t, lab.Options{Dist: m.d.dist, GPUs: 1, Repos: m.dir})
	repos.Show(m.Host, repos.Good)
	m.Must("rm", "-f", "/usr/bin/nvidia-container-runtime", "/etc/os-release")
	m.Put("/etc/os-release", m.d.release, 0o644)
	if !m.apt() {
		kernel := strings.TrimSpace(m.Must("uname", "-r"))
		spec := strings.ReplaceAll(tools, "KERNEL", kernel)
		for _, name := range []string{"kernel-modules-extra-", "kernel6.12-devel-", "kernel6.12-modules-extra-", "kernel6.18-devel-", "kernel6.18-modules-extra-"} { // Amazon's
			spec += fmt.Sprintf("%%package -n %[1]s\nSummary: kernel\n%%description -n %[1]s\nkernel\n%%files -n %[1]s\n", name+kernel)
		}
		m.Put("/root/tools.spec", spec, 0o644)
		m.Must("rpmbuild", "--quiet", "-bb", "--define", "_rpmdir /srv/tools", "/root/tools.spec")
		m.Must("createrepo_c", "-q", "/srv/tools")
		m.Put("/etc/yum.repos.d/tools.repo", "[tools]\nname=tools\nbaseurl=file:///srv/tools\nenabled=1\ngpgcheck=0\n", 0o644)
		return
	}

	m.Put(repos.LetPass, "", 0o644) // other tests are about a version with a module that does not build
	driverNode{node{m.Host, t}, ""}.hasKernel()
	if m.kind() != "debian12" {
		distro := strings.TrimSuffix(m.kind(), "-archive")
		m.Put("/etc/apt/sources.list.d/archive.list", repos.ArchiveSource(distro), 0o644)
	}
	if strings.HasPrefix(m.kind(), "debian") || m.kind() == "ubuntu2604" {
		m.Must("sh", "-c", `set -e; cd /tmp
for name in dkms gcc make zstd; do
	mkdir -p d/DEBIAN; printf 'Package: %s\nVersion: 3.0.10-8+deb12u1\nArchitecture: all\nMaintainer: lab <lab@example.invalid>\nDescription: none\n' $name >d/DEBIAN/control
	dpkg-deb --build d $name.deb >/dev/null; dpkg -i $name.deb >/dev/null; rm -rf d $name.deb
done`)
	}

	m.Must("apt-get", "update")
}

// spec asks for a branch.
func (m *matrixHost) spec(t *testing.T, branch string) string {
	t.Helper()
	spec := fmt.Sprintf("format = 1\n[driver]\nversion = %q\nsource = %q\n", branch, m.source)
	if m.source == "nvidia" {
		spec += fmt.Sprintf("[driver.repo]\nurl = %q\nkey = %q\nfingerprint = %q\n",
			repos.Mirror+"/"+repos.CUDA+"/"+m.d.name+"/x86_64", repos.Key, repos.Fingerprint(t, m.dir))
	}
	return spec
}

// branch fills the cells of one branch: all GPUs are planned for, the last one is installed for.
func (m *matrixHost) branch(t *testing.T, branch string) {
	t.Helper()
	m.Put(specFile, m.spec(t, branch), 0o644)
	for i, gpu := range matrixGPUs() {
		m.SetGPUs(gpu, 8)
		cell := fmt.Sprintf("%-10s %-6s %s %-8s", m.d.name, m.source, branch, gpu)
		if i == 0 || gpu == "HGX H100" {
			if r := m.Exec("gpuadm", "--no-color", "apply", "sources"); r.Exit != 0 {
				m.say(cell + " refused: " + sentence(r))
				continue
			}
		}

		r := m.Exec("gpuadm", "--no-color", "plan", "-o", "json", "packages")
		asked, refused := readPlan(r)
		if refused != "" {
			m.say(cell + " refused: " + refused)
			continue
		}
		verdict := "planned"
		if gpu == "HGX H100" {
			verdict = "installed"
			if r := m.Exec("gpuadm", "--no-color", "apply", "packages"); r.Exit != 0 {
				t.Errorf("%s: planned without a refusal, and then: %s", cell, r)
				continue
			}
			m.installed(t, cell, branch)
		}

		m.say(cell + " " + verdict + ": " + strings.Join(asked, " "))
	}
}

// installed wants a driver of one version of the branch, with what a node needs.
func (m *matrixHost) installed(t *testing.T, cell, branch string) {
	t.Helper()
	version := strings.TrimSpace(m.Must("sh", "-c", "ls /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.*.* /usr/lib64/libnvidia-ml.so.*.* 2>/dev/null | sed 's/.*[.]so[.]//'"))
	check.That(t, strings.HasPrefix(version, branch+".") && !strings.Contains(version, "\n"), "%s: NVML is of %q", cell, version)
	for _, file := range []string{
		"/usr/lib/x86_64-linux-gnu/libcuda.so." + version + " /usr/lib64/libcuda.so." + version, "/usr/bin/nvidia-smi", "/usr/bin/nvidia-persistenced",
		"/usr/bin/nv-fabricmanager", "/usr/src/nvidia-" + version + " /usr/lib/modules/" + emptyKernel + "/kernel/nvidia-*",
	} {
		check.That(t, m.Exec("sh", "-c", "ls -d "+file+" 2>/dev/null").Stdout != "", "%s: %s is not there", cell, file)
	}
}

// readPlan takes out of a plan which packages it asks for, or why it refuses.
func readPlan(r lab.Result) (asked []string, refused string) {
	var plan struct {
		Changes []struct{ Kind, Name, Cannot, Because, After string }
	}
	if err := json.Unmarshal([]byte(r.Stdout), &plan); err != nil || r.Exit == 2 {
		return nil, sentence(r)
	}
	for _, c := range plan.Changes {
		if c.Cannot != "" {
			return nil, cannot.FindString(c.Cannot) // without the place in node.toml
		}
		if c.Kind == "package" && c.After != "not there" {
			asked = append(asked, machineKernel.ReplaceAllString(c.Name, "$1$2$3-KERNEL"))
		}
	}

	slices.Sort(asked)
	if len(asked) == 0 {
		return nil, sentence(r)
	}
	return asked, ""
}

var (
	// machineKernel is a package of the running kernel's: its name differs from machine to machine.
	machineKernel = regexp.MustCompile(`^(kernel)(?:6\.\d+)?(-devel|-modules-extra)-\d\S*$|^(linux-headers)-\d\S*$`)
	// cannot is what a run says it cannot do, in words or as a field of JSON.
	cannot = regexp.MustCompile(`cannot [^"\n]*`)
)

// sentence is the first thing that a failed run says it cannot do.
func sentence(r lab.Result) string {
	if refusal := cannot.FindString(r.Stderr + r.Stdout); refusal != "" {
		return strings.TrimSpace(refusal)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(r.Stderr+r.Stdout), "\n")
	return first
}
