// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab/labstage"
	"github.com/gpuadm/gpuadm/test/must"
)

// overlaid is what is put beside the two functions of package stages that are renamed.
const overlaid = `package stages

import (
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/lab/labstage"
)

func sequence(session *node.Session, database *packages.Reading) []converge.Stage {
	return append(labstage.Stages(), shippedsequence(session, database)...)
}

func thingOf(session *node.Session, database *packages.Reading, ref converge.Ref) (converge.Thing, error) {
	if t := labstage.ThingOf(ref); t != nil {
		return t, nil
	}
	return shippedthingOf(session, database, ref)
}
`

// withLabStage builds gpuadm from this tree with package labstage's stage in front of its own, and returns the binary's
// bytes. The tree is not written to: the compiler reads two files elsewhere (go help build, -overlay).
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
		if renamed == string(text) {
			t.Fatalf("cannot find func %s in stages/%s", function, name)
		}
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
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build gpuadm with the lab's stage: %v\n%s", err, out)
	}
	text := must.Get(os.ReadFile(binary))(t)
	return string(text)
}

// rebootNode has a fake kubelet, a gpuadm with a stage that may need a reboot ahead of all others, and the setting
// that it shall make.
func rebootNode(t *testing.T, setting string) node {
	t.Helper()
	n := bootNode(t)
	n.Put("/usr/local/sbin/gpuadm", withLabStage(t), 0o755)
	n.Put(labstage.Setting, setting, 0o644)
	return n
}

// TestLabRebootInTheMiddle: apply --reboot refuses where nothing would continue the run after the reboot. With the boot unit it
// reboots the host when a change asks for it and all is in the journal; the boot unit makes the rest, and kubelet starts
// after that. Once nothing needs a reboot, none is made.
func TestLabRebootInTheMiddle(t *testing.T) {
	t.Parallel()
	n := rebootNode(t, "")
	before, id, pid := n.everything(), n.BootID(), n.MainPID(daemon)
	r := n.gpuadm(1, "apply", "--reboot")
	t.Logf("without the boot unit: %s", r)
	for _, words := range []string{"gpuadm.service is not installed", "nothing was touched", "try      sudo gpuadm apply --install --reboot"} {
		if !strings.Contains(r.Stderr, words) {
			t.Errorf("it does not say %q", words)
		}
	}
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
	if !strings.Contains(r.Stdout, "Rebooting: the setting is read at boot. The boot unit continues.") {
		t.Errorf("it does not say that it reboots: %s", r)
	}
	n.Rebooted()
	if n.BootID() == id {
		t.Error("it is still the same boot")
	}
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	if ended, started := n.monotonic(bootUnit, "ExecMainExitTimestampMonotonic"), n.monotonic("kubelet.service", "ExecMainStartTimestampMonotonic"); ended == 0 || started < ended {
		t.Errorf("kubelet started at %d µs, gpuadm ended at %d µs", started, ended)
	}
	if n.engineFiles() == engine || !strings.Contains(n.Journal(bootUnit), "file "+config) {
		t.Errorf("the boot unit did not make the rest:\n%s", n.Journal(bootUnit))
	}
	n.configured()
	n.working()
	n.gpuadm(0, "status")

	id = n.BootID()
	if r := n.gpuadm(0, "apply", "--reboot"); r.Stdout != "Nothing to do.\n" || n.BootID() != id {
		t.Errorf("nothing needs a reboot: %s", r)
	}
}

// TestLabRebootInVain: a change that still does not hold after the second reboot is not repeated for ever: the boot unit
// says so and kubelet is held back, until it holds.
func TestLabRebootInVain(t *testing.T) {
	t.Parallel()
	n := rebootNode(t, labstage.Never)
	n.gpuadm(4, "apply", "--install", "--reboot")
	n.Rebooted()
	n.active(bootUnit, "failed")
	if log := n.Journal(bootUnit); !strings.Contains(log, "A reboot is needed: the setting is read at boot") {
		t.Errorf("after the first reboot it does not ask for another:\n%s", log)
	}
	n.Reboot()
	n.active(bootUnit, "failed")
	log := n.Journal(bootUnit)
	t.Log(log)
	for _, words := range []string{"has no effect after 2 reboots", "3 attempts failed since boot"} {
		if !strings.Contains(log, words) {
			t.Errorf("after the second reboot it does not say %q", words)
		}
	}
	if is := n.Property("kubelet.service", "ActiveState"); is == "active" {
		t.Error("kubelet runs on a node that is not converged")
	}
	n.Reboot() // a third one by hand does not start it all over
	n.active(bootUnit, "failed")
	if log := n.Journal(bootUnit); !strings.Contains(log, "has no effect after 2 reboots") {
		t.Errorf("after the third reboot it does not stop:\n%s", log)
	}
	n.Put(labstage.Setting, "", 0o644)
	n.gpuadm(0, "apply")
	n.active("kubelet.service", "active")
}
