// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabImage: the machine's containerd takes the image, and as the DaemonSet runs it the program
// in it converges the machine: with a root folder that cannot be written, without capabilities,
// while containerd restarts under it.
func TestLabImage(t *testing.T) {
	t.Parallel()
	archive := lab.AgentArchive(t)
	each(t, []string{"2.4"}, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		r := n.ExecInput(bytes.NewReader(archive), "ctr", "-n", "lab", "images", "import", "--base-name", "lab.invalid/gpuadm", "-")
		must.That(t, r.Exit == 0, "%v", r)
		const name = "lab.invalid/gpuadm:devel"
		var bill struct{ Components []struct{ Name string } }
		n.Must("sh", "-ec", "mkdir /tmp/image; ctr -n lab images mount "+name+" /tmp/image")
		err := json.Unmarshal([]byte(n.Get("/tmp/image/usr/share/doc/gpuadm/gpuadm.cdx.json")), &bill)
		check.That(t, err == nil && len(bill.Components) >= 10, "the bill of materials has %d components: %v", len(bill.Components), err)
		out := n.Must("sh", "-c", "cd /tmp/image && find . -type f | wc -l")
		check.That(t, strings.TrimSpace(out) == "8", "the image has %s files", out)
		n.Must("ctr", "-n", "lab", "images", "unmount", "/tmp/image")
		n.Must("ctr", "-n", "lab", "run", "--rm", name, "version", "/usr/bin/gpuadm", "version")

		n.Must("ctr", "-n", "lab", "run", "--detach", "--null-io", "--read-only", "--seccomp",
			"--mount", "type=bind,src=/,dst=/host,options=rbind:rslave", "--mount", "type=bind,src=/run/systemd,dst=/run/systemd,options=rbind",
			name, "agent", "/usr/bin/gpuadm", "daemonset", "--every", "1s")
		if !eventually(func() bool { return n.Exec("gpuadm", "status").Exit == 0 }) {
			t.Errorf("not converged: %s%s", n.Exec("gpuadm", "status"), n.Exec("cat", "/run/gpuadm/daemonset.log"))
		}
		n.configured()
		// containerd may not have its socket yet: it has just been restarted.
		if task := func() string { return n.Exec("ctr", "-n", "lab", "tasks", "list").Stdout }; !eventually(func() bool { return strings.Contains(task(), "RUNNING") }) {
			t.Errorf("the container did not survive: %s", task())
		}
		n.Must("ctr", "-n", "lab", "tasks", "kill", "--signal", "KILL", "agent")
	})
}

// TestLabDaemonSetExit: gpuadm daemonset learns from the machine's systemd how its apply ended: an
// init container must not end well where that has failed. systemd keeps no failed unit.
func TestLabDaemonSetExit(t *testing.T) {
	t.Parallel()
	either(t, func(t *testing.T, o lab.Options) {
		h := lab.Boot(t, o)
		for _, c := range []struct {
			spec string
			exit int
			says string
		}{
			{"[runtime]\nengine = \"crio\"\n", 1, "it is not installed"},
			{"[runtime]\nengine = \"none\"\n", 2, "engine"},
			{"", 0, "Nothing to do."},
		} {
			h.Put("/etc/gpuadm/node.toml", "format = 1\n"+c.spec, 0o644)
			apply := h.Exec("gpuadm", "apply", "--unattended")
			pod := h.Exec("gpuadm", "daemonset", "--once", "--host", "/")
			check.That(t, pod.Exit == c.exit && apply.Exit == c.exit && strings.Contains(pod.Stdout, c.says),
				"%swant exit %d and %q\ndaemonset: %s\napply: %s", c.spec, c.exit, c.says, pod, apply)
		}

		h.Put("/etc/gpuadm/node.toml", specText, 0o644)
		h.Must("gpuadm", "apply")
		h.Must("gpuadm", "undo", "--yes")
		apply, pod := h.Exec("gpuadm", "apply", "--unattended"), h.Exec("gpuadm", "daemonset", "--once", "--host", "/")
		check.That(t, apply.Exit == 3 && pod.Exit == 0 && strings.Contains(pod.Stdout, "Held since the undo"), "held: %s%s", apply, pod)
		for try := 0; ; try++ {
			pod := h.Exec("sh", "-c", `gpuadm daemonset --once --host / & for i in $(seq 200); do
p=$(systemctl show --value --property=MainPID gpuadm-daemonset.service); [ "${p:-0}" = 0 ] || { kill -STOP $p; sleep 0.1; grep -q '^State:.T' /proc/$p/status && kill -9 $p && : >/run/killed; break; }; done; wait $!`)
			if h.Exec("test", "-e", "/run/killed").Exit != 0 && try < 20 {
				continue // it had ended before, or was about to: only what stops can be killed for sure
			}
			check.That(t, pod.Exit == 1 && strings.Contains(pod.Stderr, "cannot finish unit gpuadm-daemonset.service: systemd says failed (signal)"), "killed: %s", pod)
			break
		}

		h.Must("gpuadm", "daemonset", "--once", "--host", "/")
		check.None(t, h.Must("systemctl", "--failed", "--no-legend"), "systemd keeps")
	})
}
