// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// TestLabDaemonSetExit: gpuadm daemonset learns from the machine's systemd how its apply ended: an init container must not end well
// where that has failed. systemd keeps no failed unit.
func TestLabDaemonSetExit(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, o lab.Options) {
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
			if pod.Exit != c.exit || apply.Exit != c.exit || !strings.Contains(pod.Stdout, c.says) {
				t.Errorf("%swant exit %d and %q\ndaemonset: %s\napply: %s", c.spec, c.exit, c.says, pod, apply)
			}
		}
		for try := 0; ; try++ {
			pod := h.Exec("sh", "-c", `gpuadm daemonset --once --host / & for i in $(seq 200); do
p=$(systemctl show --value --property=MainPID gpuadm-daemonset.service); [ "${p:-0}" = 0 ] || { kill -STOP $p; sleep 0.1; grep -q '^State:.T' /proc/$p/status && kill -9 $p && : >/run/killed; break; }; done; wait $!`)
			if h.Exec("test", "-e", "/run/killed").Exit != 0 && try < 20 {
				continue // it had ended before, or was about to: only what stops can be killed for sure
			}
			if pod.Exit != 1 || !strings.Contains(pod.Stderr, "cannot finish unit gpuadm-daemonset.service: systemd says failed (signal)") {
				t.Errorf("killed: %s", pod)
			}
			break
		}
		h.Must("gpuadm", "daemonset", "--once", "--host", "/")
		if failed := h.Must("systemctl", "--failed", "--no-legend"); failed != "" {
			t.Errorf("systemd keeps %s", failed)
		}
	})
}
