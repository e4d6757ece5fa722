// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// typedOn runs a command line on a simulated machine.
func typedOn(t *testing.T, n host.Host, line string) (code int, said string) {
	t.Helper()
	var out bytes.Buffer
	code = run(t.Context(), envOn(n, &out), strings.Fields(line))
	return code, out.String()
}

// reported is the machine of a report, in test/incident/reports.
func reported(t *testing.T, name string) *simhost.Node {
	t.Helper()
	w := incident.Joined(t, true)
	w.Do(incident.All(t)[name])
	return w.Node()
}

// A machine without faults refuses each repair, also the dry run of one, and nothing is touched:
// each plan would interrupt a machine that works.
func TestRepairRefusesWhatIsNotFound(t *testing.T) {
	n := incident.Joined(t, true).Node()
	for _, r := range stages.Repairs() {
		for _, more := range []string{"-y", "-y --allow all", "--dry-run"} {
			code, said := typedOn(t, n, "repair "+r.Code+" "+more)
			want := r.Code + " is not found on this machine"
			isRefused := code == exitCannot && strings.Contains(said, want)
			check.That(t, isRefused, "repair %s %s: exit %d\n%s", r.Code, more, code, said)
		}
	}

	check.That(t, n.Touches() == 0, "%d touches", n.Touches())
}

// A fault that another one brings along is not repaired before that one: kubelet would not start
// again while swap is on.
func TestRepairRefusesWhatAnotherFaultBringsAlong(t *testing.T) {
	w := incident.Joined(t, true)
	w.Fails("kubelet")
	w.Put("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/swapfile  file  3991548  0  -2\n")
	n := w.Node()
	code, said := typedOn(t, n, "repair KUB-001 -y")
	check.That(t, code == exitCannot && strings.Contains(said, "KUB-006"), "exit %d\n%s", code, said)
	check.That(t, n.Touches() == 0, "%d touches", n.Touches())
}

// What doctor could not read is no proof that a fault is not there: the end says so, and the same
// command may succeed later.
func TestRepairOfABlindDoctor(t *testing.T) {
	w := incident.Joined(t, true)
	w.Server.Fail(kubesim.Fault{Status: 500, Times: -1})
	n := w.Node()
	code, said := typedOn(t, n, "repair KUB-007 -y")
	check.That(t, code == exitAgain && strings.Contains(said, "not checked"), "exit %d\n%s", code, said)
}

// A repair that was cut short goes on, though doctor does not find its fault any more.
func TestRepairContinuesWithoutItsFault(t *testing.T) {
	whole := reported(t, "handler-not-configured")
	code, said := typedOn(t, whole, "repair RUN-001 -y --allow all")
	must.That(t, code == 0, "exit %d\n%s", code, said)

	for at := range whole.Touches() {
		n := reported(t, "handler-not-configured")
		n.CutAt(at)
		code, _ := typedOn(t, n, "repair RUN-001 -y --allow all")
		must.That(t, code != 0, "not cut at %d", at)

		n.Boot(simhost.LoseAll)
		code, said := typedOn(t, n, "repair RUN-001 -y --allow all")
		check.That(t, code == 0, "cut at %d: exit %d\n%s", at, code, said)
		check.That(t, tree(n) == tree(whole), "cut at %d: another tree", at)
	}
}

// The files of another machine are not repaired: doctor cannot examine it.
func TestRepairOfAFolder(t *testing.T) {
	n := reported(t, "handler-not-configured")
	n.Bake()
	code, said := typedOn(t, n, "repair RUN-001 -y --root /mnt")
	check.That(t, code == exitUsage && strings.Contains(said, "another machine"), "exit %d\n%s", code, said)
}

// The owner of each file is asked before an edit. The drop-in is the GPU Operator's, by what
// nvidia-ctk 1.20.1 writes for it, with the entry commented out: "gpuadm owners" names it.
func TestRepairAsksTheOwnerOfEachFile(t *testing.T) {
	for _, name := range []string{"etc/containerd/conf.d/99-nvidia.toml", "etc/containerd/conf.d/50-gpus.toml"} {
		w := incident.Joined(t, true)
		w.Do(incident.All(t)["handler-not-configured"])
		const imports = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n"
		w.Change("etc/containerd/config.toml", "version = 2\n", imports)
		w.Put(name, `version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
# `+facts.RuntimeOfOperator+`
`)
		n := w.Node()
		_, owners := typedOn(t, n, "owners")
		must.That(t, strings.Contains(owners, "/"+name+" names "+facts.RuntimeOfOperator), "%s", owners)

		code, said := typedOn(t, n, "repair RUN-001 -y --allow all")
		want := "cannot edit /" + name + ": " + facts.GPUOperator + " writes it"
		check.That(t, code == exitCannot && strings.Contains(said, want), "exit %d\n%s", code, said)
		check.That(t, n.Touches() == 0, "%s: %d touches", name, n.Touches())

		_, doctor := typedOn(t, n, "doctor")
		isFound := strings.Contains(doctor, "! RUN-001")
		check.That(t, isFound && !strings.Contains(doctor, "repair RUN-001"), "%s", doctor)
	}
}

// Doctor prints no repair that would refuse: nodeadm writes the engine's configuration on EKS, and
// beside [runtime] in node.toml apply is the fix.
func TestDoctorPrintsNoRepairThatRefuses(t *testing.T) {
	eks := incident.Joined(t, true)
	eks.Do(incident.All(t)["handler-not-configured"])
	eks.Put("usr/bin/nodeadm mode=0755", "")
	eks.Settings("\n[[unit]]\nname = \"nodeadm-run.service\"\nenabled = \"enabled\"\n")
	n := eks.Node()
	_, doctor := typedOn(t, n, "doctor")
	isFound := strings.Contains(doctor, "! RUN-001")
	check.That(t, isFound && !strings.Contains(doctor, "repair RUN-001"), "%s", doctor)
	check.That(t, strings.Contains(doctor, "nodeadm"), "it does not say why:\n%s", doctor)

	n = reported(t, "handler-not-configured")
	must.OK(t, n.Mkdir(specHome, host.Attr{Mode: 0o755}))
	spec := []byte("format = 1\n[runtime]\n")
	must.OK(t, n.WriteFile(specHome+"/node.toml", spec, host.Attr{Mode: 0o644}))
	_, doctor = typedOn(t, n, "doctor")
	isFound = strings.Contains(doctor, "! RUN-001")
	check.That(t, isFound && !strings.Contains(doctor, "repair RUN-001"), "%s", doctor)
	check.That(t, strings.Contains(doctor, "sudo gpuadm apply"), "%s", doctor)
}

// On each reported machine a repair that doctor prints has something to do, and is not refused.
func TestDoctorsRepairsAreNotRefused(t *testing.T) {
	printed := 0
	for name := range incident.All(t) {
		n := reported(t, name)
		_, doctor := typedOn(t, n, "doctor -o json")
		for _, r := range stages.Repairs() {
			if !strings.Contains(doctor, `"sudo gpuadm repair `+r.Code+`"`) {
				continue
			}
			printed++
			code, said := typedOn(t, n, "repair "+r.Code+" --dry-run")
			hasWork := code == 0 && !strings.Contains(said, "Nothing to do")
			check.That(t, hasWork, "%s: repair %s: exit %d\n%s", name, r.Code, code, said)
		}
	}

	check.That(t, printed >= 10, "only %d repairs were printed", printed)
}

// Where no fabric manager is installed its start is no fix: doctor names the package, in the
// driver's version, and the repair refuses with the same command.
func TestRepairOfAFabricManagerThatIsNotInstalled(t *testing.T) {
	w := incident.Joined(t, true)
	const unit = "name = \"nvidia-fabricmanager.service\"\n"
	w.Change("sim.toml", unit, "name = \"unused.service\"\n")
	w.Change("var/lib/dpkg/status", "Package: nvidia-fabricmanager-580", "Package: unused")
	n := w.Node()

	const install = `sudo apt-get install nvidia-fabricmanager-580=580.95.05\*`
	_, doctor := typedOn(t, n, "doctor")
	isNamed := strings.Contains(doctor, "! FAB-002") && strings.Contains(doctor, install)
	check.That(t, isNamed && !strings.Contains(doctor, "repair FAB-002"), "%s", doctor)

	code, said := typedOn(t, n, "repair FAB-002 -y --allow all")
	check.That(t, code == exitCannot && strings.Contains(said, install), "exit %d\n%s", code, said)
	check.That(t, n.Touches() == 0, "%d touches", n.Touches())
}
