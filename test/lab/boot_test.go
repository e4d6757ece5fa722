// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/labstage"
	"github.com/gpuadm/gpuadm/test/must"
)

// kubelet is a fake with what matters of the real one's unit: it is enabled, and comes back by
// itself.
//
//go:embed testdata/kubelet.service
var kubelet string

const bootUnit = "gpuadm.service"

func bootNode(t *testing.T) node {
	t.Helper()
	n := boot(t, lab.Options{Dist: "trixie", GPUs: 8})
	n.Put("/etc/systemd/system/kubelet.service", kubelet, 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--now", "kubelet.service")
	return n
}

// installed has the boot unit, and nothing of the spec applied yet.
func (n node) installed() {
	n.t.Helper()
	n.Put(specFile, "format = 1\n[driver]\ngpu_count = 8\n", 0o644)
	n.gpuadm(0, "apply", "--install")
	n.Put(specFile, specText, 0o644)
}

// active waits until a unit is in a state.
func (n node) active(unit, state string) {
	n.t.Helper()
	is := ""
	if !eventually(func() bool { is = n.Property(unit, "ActiveState"); return is == state }) {
		n.t.Errorf("%s is %s, want %s\n%s%s", unit, is, state, n.Journal(bootUnit), n.Journal("kubelet.service"))
	}
}

// eventually waits for what comes by itself, and comes late on a machine that has much to do.
func eventually(is func() bool) bool { return lab.Until(3*time.Minute, is) }

// monotonic reads a unit's time stamp, in microseconds since boot.
func (n node) monotonic(unit, property string) int {
	n.t.Helper()
	us := must.Get(strconv.Atoi(n.Property(unit, property)))(n.t)
	return us
}

// TestLabBootUnit: installed by apply --install; at every boot it ends before kubelet starts. After
// an undo of the containerd part it leaves the node alone, and kubelet starts.
func TestLabBootUnit(t *testing.T) {
	t.Parallel()
	n := bootNode(t)
	first := n.files()
	n.gpuadm(0, "apply", "--install")
	out := n.Exec("systemd-analyze", "verify", bootUnit, "kubelet.service")
	check.That(t, out.Exit == 0 && !strings.Contains(out.Stdout+out.Stderr, "gpuadm"), "systemd-analyze verify: %s", out)
	n.Reboot()
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	ended, started := n.monotonic(bootUnit, "ExecMainExitTimestampMonotonic"), n.monotonic("kubelet.service", "ExecMainStartTimestampMonotonic")
	check.That(t, ended != 0 && started >= ended, "kubelet started at %d µs, gpuadm ended at %d µs", started, ended)
	if !strings.Contains(n.Journal(bootUnit), "Nothing to do") {
		t.Errorf("the boot unit's log:\n%s", n.Journal(bootUnit))
	}

	status := n.Exec("gpuadm", "status").Stdout
	check.That(t, !strings.Contains(status, "changed outside"), "after a plain reboot status says\n%s", status)
	n.bootTimes()

	n.Must("systemctl", "start", "gpuadm-drift.service") // in its sandbox
	says(t, n.Exec("cat", "/run/gpuadm-metrics/gpuadm.prom"), "gpuadm_report_ok 1", "gpuadm_last_run_ok 1", `gpuadm_stage_converged{stage="runtime"} 1`)

	pid := n.MainPID("kubelet.service")
	n.Must("systemctl", "restart", bootUnit)
	check.That(t, n.MainPID("kubelet.service") == pid, "restarting the boot unit restarted kubelet")

	n.Put(specFile, "format = 1\n[runtime]\n", 0o644)
	n.gpuadm(0, "apply")
	n.gpuadm(0, "undo", "--yes")
	before := n.files()
	n.Reboot()
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	check.None(t, before.Diff(n.files()), "held, and yet:")
	check.Has(t, n.Journal(bootUnit), "Held since the undo", "the boot unit's log:")
	n.Put(specFile, specText, 0o644)
	n.gpuadm(0, "undo", "--to", "all")
	check.None(t, first.Diff(n.files()), "after undo:")
}

// bootTimes holds what status -v says of the last boot against systemd's own time stamps. A lab's
// host is a container: its times begin with its own start.
func (n node) bootTimes() {
	n.t.Helper()
	var status struct {
		Boot struct {
			From  string
			Steps []struct {
				Name string
				At   int `json:"at_ms"`
				Took int `json:"took_ms"`
			}
		}
	}
	must.OK(n.t, json.Unmarshal([]byte(n.gpuadm(0, "status", "-v", "-o", "json").Stdout), &status))
	text := n.gpuadm(0, "status", "-v").Stdout
	n.t.Logf("%s", text)
	check.Has(n.t, text, "last boot, in seconds from the container's start", "status -v:")

	printed := n.Must("systemctl", "show", "--value", "--property", "UserspaceTimestampMonotonic")
	start := must.Get(strconv.Atoi(strings.TrimSpace(printed)))(n.t)
	for name, at := range map[string]int{
		bootUnit:                 n.monotonic(bootUnit, "InactiveExitTimestampMonotonic"),
		"gate opens":             n.monotonic(bootUnit, "ActiveEnterTimestampMonotonic"),
		"kubelet.service starts": n.monotonic("kubelet.service", "ExecMainStartTimestampMonotonic"),
	} {
		found := false
		for _, step := range status.Boot.Steps {
			if step.Name == name {
				found = true
				check.That(n.t, step.At == (at-start)/1000, "%s: %d ms, want %d", name, step.At, (at-start)/1000)
			}
		}

		check.That(n.t, found, "status -v says nothing of %q: %+v", name, status.Boot)
	}
}

// TestLabGate: a node that cannot converge has no kubelet; once it is repaired, kubelet comes by
// itself.
func TestLabGate(t *testing.T) {
	t.Parallel()
	n := bootNode(t)
	n.gpuadm(0, "apply", "--install")
	good := n.Get(config)
	n.Put(config, "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n", 0o644)
	n.Reboot()
	n.active(bootUnit, "failed")
	log := n.Journal(bootUnit)
	check.That(t, strings.Contains(log, "attempt 2 of 3 failed") && strings.Contains(log, "3 attempts failed since boot"), "after the third try it does not say so:\n%s", log)
	check.That(t, n.Property("kubelet.service", "ActiveState") != "active", "kubelet runs on a node that is not converged")
	check.Has(t, n.Journal("kubelet.service"), "cannot let kubelet start", "kubelet's log does not say why it is held back:")
	n.Put(config, good, 0o644)
	n.gpuadm(0, "apply")
	n.active("kubelet.service", "active")
}

// TestLabPowerLossThenBootUnit: power fails in the middle of an apply; the boot unit finishes the
// job before kubelet.
func TestLabPowerLossThenBootUnit(t *testing.T) {
	t.Parallel()
	n := bootNode(t)
	n.installed()
	touches := 0
	n.Touches(func(lab.Touch) bool {
		if touches++; touches == 25 {
			n.Cut()
		}
		return true
	}, "gpuadm", "apply")
	n.PowerLoss()
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	ended, started := n.monotonic(bootUnit, "ExecMainExitTimestampMonotonic"), n.monotonic("kubelet.service", "ExecMainStartTimestampMonotonic")
	check.That(t, started >= ended, "kubelet started at %d µs, gpuadm ended at %d µs", started, ended)
	n.gpuadm(0, "status")
	out := n.gpuadm(0, "apply")
	check.That(t, strings.Contains(out.Stdout, "Nothing to do."), "the boot unit left something: %s", out)
}

// overlaid is what is put beside the two functions of package stages that are renamed.
//
//go:embed testdata/overlaid.go.txt
var overlaid string

// withLabStage builds gpuadm from this tree with package labstage's stage in front of its own, and
// returns the binary's bytes. The tree is not written to: the compiler reads two files elsewhere
// (go help build, -overlay).
func withLabStage(t *testing.T) string {
	t.Helper()
	top := must.Get(filepath.Abs(filepath.Join("..", "..")))(t)
	dir := t.TempDir()
	replace := map[string]string{}
	put := func(name, text string) {
		place := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(place, []byte(text), 0o644))
		replace[filepath.Join(top, "stages", name)] = place
	}

	for name, function := range map[string]string{"sequence.go": "sequence", "kinds.go": "thingOf"} {
		text := must.Get(os.ReadFile(filepath.Join(top, "stages", name)))(t)
		renamed := strings.Replace(string(text), "\nfunc "+function+"(", "\nfunc shipped"+function+"(", 1)
		must.That(t, renamed != string(text), "cannot find func %s in stages/%s", function, name)
		put(name, renamed)
	}

	put("overlaid.go", overlaid)
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o644)
	}
	must.OK(t, err)
	binary := filepath.Join(dir, "gpuadm")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, "./cmd/gpuadm")
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	must.That(t, err == nil, "cannot build gpuadm with the lab's stage: %v\n%s", err, out)
	text := must.Get(os.ReadFile(binary))(t)
	return string(text)
}

// rebootNode has a fake kubelet, a gpuadm with a stage that may need a reboot ahead of all others,
// and the setting that it shall make.
func rebootNode(t *testing.T, setting string) node {
	t.Helper()
	n := bootNode(t)
	n.Put("/usr/local/sbin/gpuadm", withLabStage(t), 0o755)
	n.Put(labstage.Setting, setting, 0o644)
	return n
}

// TestLabRebootInTheMiddle: apply --reboot refuses where nothing would continue the run after the
// reboot. With the boot unit it reboots the host when a change asks for it and all is in the
// journal; the boot unit makes the rest, and kubelet starts after that. Once nothing needs a
// reboot, none is made.
func TestLabRebootInTheMiddle(t *testing.T) {
	t.Parallel()
	n := rebootNode(t, "")
	before, id, pid := n.everything(), n.BootID(), n.MainPID(daemon)
	r := n.gpuadm(1, "apply", "--reboot")
	t.Logf("without the boot unit: %s", r)
	check.Says(t, r.Stderr, "gpuadm.service is not installed", "nothing was touched", "try      sudo gpuadm apply --install --reboot")
	if diff := before.Touched(n.everything()); diff != "" || n.MainPID(daemon) != pid {
		t.Errorf("containerd's process is %d, was %d; touched:\n%s", n.MainPID(daemon), pid, diff)
	}
	if r := n.gpuadm(2, "apply", "--reboot", "--root", "/mnt"); !strings.Contains(r.Stderr, "cannot reboot /mnt") {
		t.Errorf("a root folder: %s", r)
	}
	if r := n.gpuadm(2, "apply", "--reboot", "-f", specFile); !strings.Contains(r.Stderr, "the boot unit reads /etc/gpuadm") {
		t.Errorf("a spec that the boot unit does not read: %s", r)
	}

	engine := n.engineFiles()
	r = n.gpuadm(4, "apply", "--install", "--reboot")
	t.Logf("with the boot unit: %s", r)
	check.That(t, strings.Contains(r.Stdout, "Rebooting: the setting is read at boot. The boot unit continues."), "it does not say that it reboots: %s", r)
	n.Rebooted()
	check.That(t, n.BootID() != id, "it is still the same boot")
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	ended, started := n.monotonic(bootUnit, "ExecMainExitTimestampMonotonic"), n.monotonic("kubelet.service", "ExecMainStartTimestampMonotonic")
	check.That(t, ended != 0 && started >= ended, "kubelet started at %d µs, gpuadm ended at %d µs", started, ended)
	if n.engineFiles() == engine || !strings.Contains(n.Journal(bootUnit), "file "+config) {
		t.Errorf("the boot unit did not make the rest:\n%s", n.Journal(bootUnit))
	}
	n.configured()
	n.working()
	n.gpuadm(0, "status")

	id = n.BootID()
	r = n.gpuadm(0, "apply", "--reboot")
	check.That(t, r.Stdout == "Nothing to do.\n" && n.BootID() == id, "nothing needs a reboot: %s", r)
}

// TestLabRebootInVain: a change that still does not hold after the second reboot is not repeated
// for ever: the boot unit says so and kubelet is held back, until it holds.
func TestLabRebootInVain(t *testing.T) {
	t.Parallel()
	n := rebootNode(t, labstage.Never)
	n.gpuadm(4, "apply", "--install", "--reboot")
	n.Rebooted()
	n.active(bootUnit, "failed")
	check.Has(t, n.Journal(bootUnit), "A reboot is needed: the setting is read at boot", "after the first reboot it does not ask for another:")
	n.Reboot()
	n.active(bootUnit, "failed")
	log := n.Journal(bootUnit)
	t.Log(log)
	check.Says(t, log, "has no effect after 2 reboots", "3 attempts failed since boot")
	check.That(t, n.Property("kubelet.service", "ActiveState") != "active", "kubelet runs on a node that is not converged")
	n.Reboot() // a third one by hand does not start it all over
	n.active(bootUnit, "failed")
	check.Has(t, n.Journal(bootUnit), "has no effect after 2 reboots", "after the third reboot it does not stop:")
	n.Put(labstage.Setting, "", 0o644)
	n.gpuadm(0, "apply")
	n.active("kubelet.service", "active")
}

const (
	// aGenerator does of cloud-init's what others see: the folder is there before any unit starts.
	// Source: https://github.com/canonical/cloud-init, systemd/cloud-init-generator.tmpl.
	aGenerator = "#!/bin/sh\nmkdir -p /run/cloud-init\n: >/run/cloud-init/enabled\n"
	// aScript is a user-data script that writes the spec in two parts; cloud-init writes its result
	// when the last stage ends.
	aScript = "#!/bin/sh -e\ncat /opt/spec.1 >/etc/gpuadm/node.toml\nsleep 1\ncat /opt/spec.2 >>/etc/gpuadm/node.toml\nsleep 5\necho '{}' >/run/cloud-init/result.json\n"
	// cloudFinal has the order of Debian's. Source: systemd/cloud-final.service there.
	cloudFinal = "[Unit]\nAfter=network-online.target multi-user.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/opt/user-data\n[Install]\nWantedBy=cloud-init.target\n"
	cloudInit  = "[Unit]\nAfter=multi-user.target\n[Install]\nWantedBy=multi-user.target\n"
)

// TestLabLateSpec: a user-data script writes the spec after kubelet has started. Kubelet stops,
// gpuadm applies the spec, and only then kubelet starts again. Once cloud-init has ended, an edit
// changes nothing by itself.
func TestLabLateSpec(t *testing.T) {
	t.Parallel()
	n := bootNode(t)
	n.installed()
	first, rest, _ := strings.Cut(specText, "[runtime]")
	n.Put("/etc/systemd/system-generators/cloud-init-generator", aGenerator, 0o755)
	n.Put("/opt/spec.1", first, 0o644)
	n.Put("/opt/spec.2", "[runtime]"+rest, 0o644)
	n.Put("/opt/user-data", aScript, 0o755)
	n.Put("/etc/systemd/system/cloud-final.service", cloudFinal, 0o644)
	n.Put("/etc/systemd/system/cloud-init.target", cloudInit, 0o644)
	n.Put(specFile, first, 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "enable", "--quiet", "cloud-final.service", "cloud-init.target")
	n.Reboot()
	n.active("cloud-final.service", "active")
	if !eventually(func() bool { return strings.Contains(n.Journal(bootUnit), "file "+config) }) {
		t.Fatalf("the late spec was not applied:\n%s%s", n.Journal(bootUnit), n.Journal("gpuadm-spec.service"))
	}
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	ended, started := n.monotonic(bootUnit, "ExecMainExitTimestampMonotonic"), n.monotonic("kubelet.service", "ExecMainStartTimestampMonotonic")
	check.That(t, ended != 0 && started >= ended, "kubelet started at %d µs, gpuadm ended at %d µs", started, ended)
	if starts := strings.Count(n.Journal("kubelet.service"), "Started kubelet.service"); starts < 2 {
		t.Errorf("kubelet has started %d times: it was not held again\n%s", starts, n.Journal("kubelet.service"))
	}
	n.gpuadm(0, "status")

	check.That(t, eventually(func() bool {
		return n.Property("gpuadm-spec.path", "SubState") == "waiting"
	}), "gpuadm-spec.path does not watch again")
	asked, ran, kubelet := n.monotonic("gpuadm-spec.service", "ConditionTimestampMonotonic"), n.Property(bootUnit, "InvocationID"), n.MainPID("kubelet.service")
	// systemd misses an edit between two watches of the file, so the test edits until systemd has
	// seen one: what counts is what systemd then does.
	seen := eventually(func() bool {
		n.Put(specFile, first, 0o644)
		return n.monotonic("gpuadm-spec.service", "ConditionTimestampMonotonic") > asked
	})
	check.That(t, seen, "systemd has not seen the edit")
	if n.Property("gpuadm-spec.service", "ConditionResult") != "no" || n.Property(bootUnit, "InvocationID") != ran || n.MainPID("kubelet.service") != kubelet {
		t.Errorf("an operator's edit was applied by itself:\n%s", n.Journal(bootUnit))
	}
}
