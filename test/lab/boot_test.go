// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// kubelet is a fake with what matters of the real one's unit: it is enabled, and comes back by itself.
const kubelet = `[Unit]
Description=a fake kubelet
After=containerd.service
[Service]
ExecStart=/bin/sleep infinity
Restart=always
RestartSec=2
[Install]
WantedBy=multi-user.target
`

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

// TestLabBootUnit: installed by apply --install; at every boot it ends before kubelet starts; undo holds it.
func TestLabBootUnit(t *testing.T) {
	t.Parallel()
	n := bootNode(t)
	first := n.files()
	n.gpuadm(0, "apply", "--install")
	if out := n.Exec("systemd-analyze", "verify", bootUnit, "kubelet.service"); out.Exit != 0 || strings.Contains(out.Stdout+out.Stderr, "gpuadm") {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	n.Reboot()
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	ended, started := n.monotonic(bootUnit, "ExecMainExitTimestampMonotonic"), n.monotonic("kubelet.service", "ExecMainStartTimestampMonotonic")
	if ended == 0 || started < ended {
		t.Errorf("kubelet started at %d µs, gpuadm ended at %d µs", started, ended)
	}
	if !strings.Contains(n.Journal(bootUnit), "Nothing to do") {
		t.Errorf("the boot unit's log:\n%s", n.Journal(bootUnit))
	}

	pid := n.MainPID("kubelet.service")
	n.Must("systemctl", "restart", bootUnit)
	if n.MainPID("kubelet.service") != pid {
		t.Error("restarting the boot unit restarted kubelet")
	}

	n.gpuadm(0, "undo", "--to", "all")
	if diff := first.Diff(n.files()); diff != "" {
		t.Errorf("after undo:\n%s", diff)
	}
}

// TestLabHeld: after undo of the containerd part only, the boot unit leaves the node alone, and kubelet starts.
func TestLabHeld(t *testing.T) {
	t.Parallel()
	n := bootNode(t)
	n.installed()
	n.gpuadm(0, "apply")
	n.gpuadm(0, "undo")
	before := n.files()
	n.Reboot()
	n.active(bootUnit, "active")
	n.active("kubelet.service", "active")
	if diff := before.Diff(n.files()); diff != "" {
		t.Errorf("held, and yet:\n%s", diff)
	}
	if !strings.Contains(n.Journal(bootUnit), "Held since the undo") {
		t.Errorf("the boot unit's log:\n%s", n.Journal(bootUnit))
	}
}

// TestLabGate: a node that cannot converge has no kubelet; once it is repaired, kubelet comes by itself.
func TestLabGate(t *testing.T) {
	t.Parallel()
	n := bootNode(t)
	n.gpuadm(0, "apply", "--install")
	good := n.Get(config)
	n.Put(config, "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n", 0o644)
	n.Reboot()
	n.active(bootUnit, "failed")
	if log := n.Journal(bootUnit); !strings.Contains(log, "attempt 2 of 3 failed") || !strings.Contains(log, "3 attempts failed since boot") {
		t.Errorf("after the third try it does not say so:\n%s", log)
	}
	if is := n.Property("kubelet.service", "ActiveState"); is == "active" {
		t.Error("kubelet runs on a node that is not converged")
	}
	if log := n.Journal("kubelet.service"); !strings.Contains(log, "cannot let kubelet start") {
		t.Errorf("kubelet's log does not say why it is held back:\n%s", log)
	}
	n.Put(config, good, 0o644)
	n.gpuadm(0, "apply")
	n.active("kubelet.service", "active")
}

// TestLabPowerLossThenBootUnit: power fails in the middle of an apply; the boot unit finishes the job before kubelet.
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
	if ended, started := n.monotonic(bootUnit, "ExecMainExitTimestampMonotonic"), n.monotonic("kubelet.service", "ExecMainStartTimestampMonotonic"); started < ended {
		t.Errorf("kubelet started at %d µs, gpuadm ended at %d µs", started, ended)
	}
	n.gpuadm(0, "status")
	if out := n.gpuadm(0, "apply"); !strings.Contains(out.Stdout, "Nothing to do.") {
		t.Errorf("the boot unit left something: %s", out)
	}
}
