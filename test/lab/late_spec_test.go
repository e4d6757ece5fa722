// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

const (
	// aGenerator does of cloud-init's what others see: the folder is there before any unit starts.
	// Source: https://github.com/canonical/cloud-init, systemd/cloud-init-generator.tmpl.
	aGenerator = "#!/bin/sh\nmkdir -p /run/cloud-init\n: >/run/cloud-init/enabled\n"
	// aScript is a user-data script that writes the spec in two parts; cloud-init writes its result when the last stage ends.
	aScript = "#!/bin/sh -e\ncat /opt/spec.1 >/etc/gpuadm/node.toml\nsleep 1\ncat /opt/spec.2 >>/etc/gpuadm/node.toml\nsleep 5\necho '{}' >/run/cloud-init/result.json\n"
	// cloudFinal has the order of Debian's. Source: systemd/cloud-final.service there.
	cloudFinal = "[Unit]\nAfter=network-online.target multi-user.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/opt/user-data\n[Install]\nWantedBy=cloud-init.target\n"
	cloudInit  = "[Unit]\nAfter=multi-user.target\n[Install]\nWantedBy=multi-user.target\n"
)

// TestLabLateSpec: a user-data script writes the spec after kubelet has started. Kubelet stops, gpuadm applies the spec, and only then
// kubelet starts again. Once cloud-init has ended, an edit changes nothing by itself.
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

	asked, ran, kubelet := n.monotonic("gpuadm-spec.service", "ConditionTimestampMonotonic"), n.Property(bootUnit, "InvocationID"), n.MainPID("kubelet.service")
	n.Put(specFile, first, 0o644)
	check.That(t, eventually(func() bool { return n.monotonic("gpuadm-spec.service", "ConditionTimestampMonotonic") > asked }), "systemd has not seen the edit")
	if n.Property("gpuadm-spec.service", "ConditionResult") != "no" || n.Property(bootUnit, "InvocationID") != ran || n.MainPID("kubelet.service") != kubelet {
		t.Errorf("an operator's edit was applied by itself:\n%s", n.Journal(bootUnit))
	}
}
