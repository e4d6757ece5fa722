// SPDX-License-Identifier: Apache-2.0

package ubuntu

import (
	"errors"
	"io/fs"
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

// dkmsPair is the simulated machine, and the folder that real dkms takes for its machine. Ubuntu
// 24.04 has dkms 3.0.11, Debian 12 has 3.0.10; 3.1 answers otherwise.
type dkmsPair struct {
	t    *testing.T
	sim  *simhost.Node
	root string
}

const (
	dkmsKernel = "6.8.0-88-generic"
	dkmsBuilds = "580.95.05"  // a driver whose modules build
	dkmsFails  = "580.105.08" // one whose modules do not
)

func newDKMSPair(t *testing.T) *dkmsPair {
	t.Helper()
	version, err := exec.Command("dkms", "--version").Output()
	if err != nil {
		must.That(t, os.Getenv("CI") != "true", "%v", err)
		t.Skip("dkms is not installed")
	}
	if !strings.HasPrefix(string(version), "dkms-3.0.") {
		t.Skipf("Ubuntu 24.04 has dkms 3.0, and this machine %s", version)
	}
	if os.Geteuid() != 0 {
		must.That(t, os.Getenv("CI") != "true", "dkms works for root alone")
		t.Skip("dkms works for root alone")
	}

	p := &dkmsPair{t: t, root: t.TempDir()}
	p.sim = must.Get(simhost.New(must.Get(os.ReadFile("../../pairs/machine.txtar"))(t)))(t)
	Install(p.sim)

	// The simulated kernel has its headers here too.
	build := filepath.Join(p.root, "lib/modules", dkmsKernel, "build")
	must.OK(t, os.MkdirAll(filepath.Join(build, "include"), 0o755))
	must.OK(t, os.WriteFile(filepath.Join(build, ".config"), nil, 0o644))
	must.OK(t, os.MkdirAll(filepath.Join(p.root, "var/lib/dkms"), 0o755))
	must.OK(t, os.MkdirAll(filepath.Join(p.root, "bin"), 0o755))
	must.OK(t, os.Symlink("/bin/true", filepath.Join(p.root, "bin/depmod"))) // this machine's list stays
	p.source(dkmsBuilds, "touch")
	p.source(dkmsFails, "false")

	m := &machine{Files: p.sim.Files}
	must.OK(t, m.folders("/simulated-net"))
	must.OK(t, p.sim.WriteFile("/simulated-net/nobuild", []byte(dkmsFails), host.Attr{Mode: 0o644}))
	must.OK(t, m.drop(m.under("/var/lib/dkms")...))
	must.OK(t, m.drop(m.under("/lib/modules/"+dkmsKernel+"/updates")...))
	return p
}

// source is the source of a driver's modules for both. Real dkms runs a program in place of a
// compiler.
func (p *dkmsPair) source(version, program string) {
	p.t.Helper()
	var conf strings.Builder
	conf.WriteString("PACKAGE_NAME=nvidia\nPACKAGE_VERSION=" + version + "\nAUTOINSTALL=yes\nCLEAN=true\nMAKE[0]='" + program)
	for _, module := range modules {
		conf.WriteString(" " + module + ".ko")
	}
	conf.WriteString("'\n")
	for i, module := range modules {
		n := "[" + string(rune('0'+i)) + "]="
		conf.WriteString("BUILT_MODULE_NAME" + n + module + "\nDEST_MODULE_LOCATION" + n + "/updates/dkms\nSTRIP" + n + "no\n")
	}

	dir := "/usr/src/nvidia-" + version
	must.OK(p.t, os.MkdirAll(p.root+dir, 0o755))
	must.OK(p.t, os.WriteFile(p.root+dir+"/dkms.conf", []byte(conf.String()), 0o644))
	must.OK(p.t, os.WriteFile(p.root+dir+"/nvidia.c", nil, 0o644))
	m := &machine{Files: p.sim.Files}
	must.OK(p.t, m.put(dir+"/dkms.conf", conf.String()))
	must.OK(p.t, m.put(dir+"/nvidia.c", ""))
}

var dkmsError = regexp.MustCompile(`(?m)^Error! .*$`)

// call compares one call: its exit code, its first error, and the tree that it leaves.
func (p *dkmsPair) call(args ...string) {
	p.t.Helper()
	cmd := exec.Command("dkms", slices.Concat(args, []string{
		"--dkmstree", p.root + "/var/lib/dkms",
		"--sourcetree", p.root + "/usr/src",
		"--installtree", p.root + "/lib/modules",
		"--kernelsourcedir", filepath.Join(p.root, "lib/modules", dkmsKernel, "build"),
	})...)
	cmd.Env = []string{"LC_ALL=C", "PATH=" + p.root + "/bin:" + os.Getenv("PATH")}
	realOut, _ := cmd.CombinedOutput()
	realExit := cmd.ProcessState.ExitCode()

	simOut, err := run(dkms, p.sim.Files, append([]string{"dkms"}, args...))
	simExit := 0
	said := string(simOut)
	var failed *host.CommandError
	if errors.As(err, &failed) {
		simExit = failed.Code
		said += failed.Stderr
	}

	what := "dkms " + strings.Join(args, " ")
	check.That(p.t, realExit == simExit, "%s: dkms exits with %d, simulated with %d\n%s\n%s", what, realExit, simExit, realOut, said)
	realError := strings.ReplaceAll(dkmsError.FindString(string(realOut)), p.root, "")
	check.Equal(p.t, dkmsError.FindString(said), realError, "%s: the simulated dkms says", what)
	check.List(p.t, p.simulatedTree(), p.realTree(), "%s: the simulated dkms leaves", what)
}

// isOfDKMS are the parts of the tree that are compared. The log of a build that went well, and the
// copy of the source in which one failed, are dkms's own.
func isOfDKMS(name string) bool {
	switch {
	case strings.HasPrefix(name, "/lib/modules/"+dkmsKernel+"/updates/"):
		return true
	case !strings.HasPrefix(name, "/var/lib/dkms/"):
		return false
	case strings.Contains(name, "/build/"):
		return strings.HasSuffix(name, "/build/make.log")
	}
	return !strings.Contains(name, "/log/")
}

func (p *dkmsPair) realTree() (names []string) {
	p.t.Helper()
	must.OK(p.t, filepath.WalkDir(p.root, func(place string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(place, p.root)
		if err == nil && !entry.IsDir() && isOfDKMS(name) {
			names = append(names, name)
		}
		return err
	}))
	slices.Sort(names)
	return names
}

func (p *dkmsPair) simulatedTree() (names []string) {
	m := &machine{Files: p.sim.Files}
	for _, name := range slices.Concat(m.under("/var/lib/dkms"), m.under("/lib/modules/"+dkmsKernel)) {
		if isOfDKMS(name) {
			names = append(names, name)
		}
	}

	slices.Sort(names)
	return names
}

// TestDKMS: which exit code dkms has, what it says and what it leaves, for the calls that gpuadm and
// the packages' scripts make, and in states that an earlier call left.
func TestDKMS(t *testing.T) {
	t.Parallel()
	p := newDKMSPair(t)
	of := func(version string) []string { return []string{"-m", "nvidia", "-v", version} }
	on := func(version string) []string { return append(of(version), "-k", dkmsKernel) }
	for _, call := range [][]string{
		append([]string{"add"}, of(dkmsBuilds)...),
		append([]string{"add"}, of(dkmsBuilds)...),
		append([]string{"add"}, of("1.0")...),
		append([]string{"build"}, on(dkmsBuilds)...),
		append([]string{"build"}, on(dkmsBuilds)...),
		append([]string{"build"}, on("1.0")...),
		append([]string{"install"}, on(dkmsBuilds)...),
		append([]string{"install"}, on(dkmsBuilds)...),
		append([]string{"uninstall"}, on(dkmsBuilds)...),
		append([]string{"uninstall"}, on(dkmsBuilds)...),
		append([]string{"install"}, on(dkmsBuilds)...),
		append([]string{"install"}, on(dkmsFails)...),
		append([]string{"uninstall"}, on(dkmsFails)...),
		append([]string{"remove"}, on(dkmsFails)...),
		append([]string{"remove"}, on(dkmsBuilds)...),
		append([]string{"remove"}, on(dkmsBuilds)...),
		append([]string{"remove", "--all"}, of(dkmsBuilds)...),
		append([]string{"uninstall"}, on(dkmsBuilds)...),
		append([]string{"install"}, on(dkmsBuilds)...),
		append([]string{"remove", "--all"}, of(dkmsBuilds)...),
	} {
		t.Run(strings.Join(call, " "), func(t *testing.T) {
			p.t = t
			p.call(call...)
		})
	}
}
