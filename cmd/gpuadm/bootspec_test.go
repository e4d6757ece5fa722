// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

const machineSpecFile = "/etc/gpuadm/node.toml"

// appliedNode is a machine on which an apply of its node.toml has ended well.
func appliedNode(t *testing.T) *simhost.Node {
	t.Helper()
	n := recordedNode(t, "debian13-containerd17")
	plantFile(t, n, "/usr/bin/nvidia-container-runtime", "")
	must.OK(t, n.SetAttr("/usr/bin/nvidia-container-runtime", host.Attr{Mode: 0o755}))
	plantFile(t, n, machineSpecFile, "format = 1 # planted-comment\n[runtime]\nset_as_default = true\n")
	ends(t, n, 0, "apply")
	must.That(t, hasLastSpec(n), "the applied spec is not kept")
	return n
}

// ends runs gpuadm on a machine, checks its exit code, and returns what it printed.
func ends(t *testing.T, n host.Host, want int, args ...string) string {
	t.Helper()
	var out strings.Builder
	code := run(t.Context(), envOn(n, &out), args)
	check.That(t, code == want, "gpuadm %v: exit code %d, want %d: %s", args, code, want, out.String())
	return out.String()
}

func hasLastSpec(n *simhost.Node) bool {
	_, err := n.Lstat(converge.LastSpecFile)
	return err == nil
}

// TestSpecRemoved: the removal of node.toml is an operator's decision. The drift unit names it, the
// next boot leaves the machine as it is and forgets the spec, and the gate is open. A later mistake
// in a new node.toml does not bring the old spec back.
func TestSpecRemoved(t *testing.T) {
	n := appliedNode(t)
	must.OK(t, n.Remove(machineSpecFile))
	tree := n.Tree(converge.Home, "/run")

	out := ends(t, n, 0, "plan", "--report")
	check.Has(t, out, "was removed: from the next boot on gpuadm leaves this machine as it is", "the drift unit")
	ends(t, n, 0, "gate")
	must.That(t, hasLastSpec(n), "a look has removed the spec")

	out = ends(t, n, 0, "apply", "--boot")
	check.Has(t, out, "was removed: gpuadm leaves this machine as it is.", "the boot")
	check.That(t, n.Tree(converge.Home, "/run") == tree, "the boot has changed the machine")
	check.That(t, !hasLastSpec(n), "the spec is still kept")

	plantFile(t, n, machineSpecFile, "[[[")
	out = ends(t, n, exitUsage, "apply", "--boot")
	check.Has(t, out, "no apply of node.toml has ended well", "a new node.toml with a mistake")
}

// unreadable is a machine that fails to read some files.
type unreadable struct {
	host.Host
	names map[string]error
}

func (u unreadable) ReadFile(name string) ([]byte, error) {
	if err := u.names[name]; err != nil {
		return nil, host.Failed("read", name, err)
	}
	return u.Host.ReadFile(name)
}

func (u unreadable) ReadDir(name string) ([]string, error) {
	if err := u.names[name]; err != nil {
		return nil, host.Failed("read", name, err)
	}
	return u.Host.ReadDir(name)
}

// TestSpecUnreadable: whichever part of the spec cannot be read, and why: a boot converges by the
// spec that was applied last, the gate is open, and an apply by hand changes nothing. Where that spec
// cannot be read either, the gate is closed with both causes.
func TestSpecUnreadable(t *testing.T) {
	for _, name := range []string{machineSpecFile, "/etc/gpuadm/node.d", "/etc/gpuadm/node.d/10-pool.toml"} {
		for _, cause := range []error{syscall.EIO, syscall.EACCES, syscall.ESTALE, syscall.ETIMEDOUT} {
			t.Run(filepath.Base(name)+" "+cause.Error(), func(t *testing.T) {
				n := appliedNode(t)
				plantFile(t, n, "/etc/gpuadm/node.d/10-pool.toml", "")
				fails := map[string]error{name: cause}
				broken := unreadable{n, fails}

				touches := n.Touches()
				ends(t, broken, exitCannot, "apply")
				check.Equal(t, n.Touches(), touches, "touches of an apply by hand")
				out := ends(t, broken, 0, "apply", "--boot")
				check.Says(t, out, "cannot use this machine's spec: ", cause.Error())
				check.Has(t, out, "this boot goes by the last applied spec ", "the boot")
				out = ends(t, broken, 0, "gate")
				check.Has(t, out, "the gate goes by the last applied spec", "the gate")

				fails[converge.LastSpecFile] = syscall.EIO
				out = ends(t, broken, exitUsage, "gate")
				check.Says(t, out, "cannot let kubelet start: ", cause.Error(), syscall.EIO.Error())
				check.Has(t, out, "the spec that was applied last cannot be used either: ", "without both")
			})
		}
	}
}

// TestLastSpecNamesFiles: a file that the last applied spec names is trusted no more than one that
// node.toml names.
func TestLastSpecNamesFiles(t *testing.T) {
	n := appliedNode(t)
	plantFile(t, n, "/etc/ca.crt", "")
	const withFile = "format = 1\n[runtime]\nset_as_default = true\n[proxy]\nca_file = \"/etc/ca.crt\"\n"
	plantFile(t, n, machineSpecFile, withFile)
	ends(t, n, 0, "apply")

	must.OK(t, n.SetAttr("/etc/ca.crt", host.Attr{Mode: 0o666}))
	plantFile(t, n, machineSpecFile, "[[[")
	out := ends(t, n, exitUsage, "apply", "--boot")
	check.Says(t, out, "the spec that was applied last cannot be used either", "/etc/ca.crt")
}

// TestOtherSpecsAreNotKept: what a boot would not apply does not replace the spec that it goes by: a
// spec of -f, a part of the stages, and the spec of an image.
func TestOtherSpecsAreNotKept(t *testing.T) {
	n := appliedNode(t)
	kept := string(must.Get(n.ReadFile(converge.LastSpecFile))(t))
	other := filepath.Join(t.TempDir(), "other.toml")
	must.OK(t, os.WriteFile(other, []byte("format = 1\n[runtime]\n"), 0o644))
	plantFile(t, n, machineSpecFile, "format = 1\n[runtime]\nset_as_default = false\n")

	for _, flags := range []string{"-f " + other, "runtime", "--skip toolkit"} {
		args := append([]string{"apply"}, strings.Fields(flags)...)
		ends(t, n, 0, args...)
		is := string(must.Get(n.ReadFile(converge.LastSpecFile))(t))
		check.Equal(t, is, kept, "%v: the kept spec", args)
	}
}

// TestBakeForgetsSpec: an image keeps no spec of the machine of which it is a copy, and none of its
// own: what waits for first boot has not ended well.
func TestBakeForgetsSpec(t *testing.T) {
	n := appliedNode(t)
	must.OK(t, n.Remove("/etc/kubernetes/kubelet.conf"))
	n.Bake()
	e := envOn(n, os.Stdout)
	e.image = func(string, *local.ModuleKey, commands.Follow) (host.Host, func(), error) {
		return n, func() {}, nil
	}
	var out strings.Builder
	e.stdout, e.stderr = &out, &out
	code := run(t.Context(), e, []string{"bake", "--root", "/image"})
	check.That(t, code == 0, "exit code %d: %s", code, out.String())
	check.That(t, !hasLastSpec(n), "the image has a spec that was applied last")
}

// TestBundleWithoutLastSpec: a bundle has the state by the spec that was applied last, and not the
// file.
func TestBundleWithoutLastSpec(t *testing.T) {
	n := appliedNode(t)
	plantFile(t, n, machineSpecFile, "[[[")
	var packed, errs strings.Builder
	e := envOn(n, &packed)
	e.stderr = &errs
	code := run(t.Context(), e, []string{"bundle", "-o", "-"})
	must.That(t, code == 0, "exit code %d: %s", code, errs.String())
	files := unpacked(t, []byte(packed.String()))
	check.Has(t, files["status.json"], "instead_of_node_toml", "the status")
	for name, text := range files {
		check.None(t, lineWith(text, "The spec that gpuadm applied last"), "%s has the kept spec:", name)
		check.None(t, lineWith(text, "planted-comment"), "%s has a comment of node.toml:", name)
	}
}

// TestClearsFailedUnits: an apply that ends well has systemd forget that gpuadm's own units have
// failed.
func TestClearsFailedUnits(t *testing.T) {
	n := appliedNode(t)
	ends(t, n, 0, "apply", "--install")
	own := []string{"gpuadm.service", "gpuadm-ready.service", "gpuadm-drift.service"}
	for _, unit := range own {
		must.OK(t, n.SetUnit(t.Context(), unit, host.UnitChange{Job: "start"}))
		must.OK(t, n.Refuse(unit, "."))
		err := n.SetUnit(t.Context(), unit, host.UnitChange{Job: "restart"})
		must.That(t, errors.As(err, new(*host.UnitError)), "%s has not failed: %v", unit, err)
	}

	out := ends(t, n, 0, "apply")
	names := "No longer failed: gpuadm.service, gpuadm-ready.service, gpuadm-drift.service.\n"
	check.Equal(t, out, "Nothing to do.\n"+names, "it says")
	for _, unit := range own {
		check.Equal(t, must.Get(n.Unit(t.Context(), unit))(t).Active, "inactive", "%s is", unit)
	}
	check.Equal(t, ends(t, n, 0, "apply"), "Nothing to do.\n", "the apply after that says")
}

// TestDoctorKnowsTheSpec: doctor names a spec that cannot be used with its place, and what a boot
// does in spite of it. Other users are told what only root may read, and no fault.
func TestDoctorKnowsTheSpec(t *testing.T) {
	n := appliedNode(t)
	plantFile(t, n, machineSpecFile, "[[[")
	out := ends(t, n, exitPending, "doctor")
	check.Says(t, out, "! ADM-001  node.toml cannot be used", machineSpecFile+":1:3: ")
	check.Has(t, out, "a boot goes by the last applied spec ", "the finding")
	check.Has(t, out, "type        sudo gpuadm validate && sudo gpuadm apply", "the commands")
	check.Has(t, out, "fix the file, which sudo gpuadm validate checks; then apply", "the fix")

	must.OK(t, converge.ForgetSpec(n))
	out = ends(t, n, exitPending, "doctor")
	const notChecked = "Not checked: what node.toml asks for: "
	check.Says(t, out, "there is no spec to go by instead", notChecked+machineSpecFile)

	var all strings.Builder
	closed := unreadable{n, map[string]error{machineSpecFile: syscall.EACCES}}
	e := envOn(closed, &all)
	e.root = false
	code := run(t.Context(), e, []string{"doctor"})
	isFault := code == exitPending && strings.Contains(all.String(), "ADM-001")
	check.That(t, !isFault, "for another user a fault: %s", all.String())
	check.Has(t, all.String(), notChecked+"only root may read it", "another user is told")
}

// TestLoudLinesAreTyped: the lines that the boot unit and the gate write to the journal name the
// commands as an operator types them.
func TestLoudLinesAreTyped(t *testing.T) {
	c := &common{env: envOn(nil, io.Discard), rootDir: "/"}
	c.typedAs = "/usr/local/sbin/gpuadm"
	c.stderr = c.screen(io.Discard)
	broken := unusable{why: errors.New("cannot read it")}
	lines := strings.Join(c.loudLines(failureOf(broken.trouble("this boot goes"))), "\n")
	check.Says(t, lines, "cannot read it", "then: sudo /usr/local/sbin/gpuadm apply")
}
