// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestDiffNamesWhatCouldHaveDoneIt has logs with events before gpuadm's run, between that and the change, and after the change: those
// between are named.
func TestDiffNamesWhatCouldHaveDoneIt(t *testing.T) {
	n := recordedNode(t, "debian12-containerd16")
	plantFile(t, n, "/usr/bin/nvidia-container-runtime", "")
	must.OK(t, n.SetAttr("/usr/bin/nvidia-container-runtime", host.Attr{Mode: 0o755}))
	plantFile(t, n, "/etc/gpuadm/node.toml", "format = 1\n[runtime]\nset_as_default = true\n")
	if code, out, errs := onNode(t, n, "apply"); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	before := n.Now().Add(-time.Hour)
	n.Advance(24 * time.Hour)
	between := n.Now()
	n.Advance(time.Minute)
	plantFile(t, n, "/etc/containerd/config.toml", "version = 2\n")
	n.Advance(24 * time.Hour)
	after := n.Now()
	n.Advance(time.Hour)
	const iso = "2006-01-02T15:04:05-0700"
	dpkg := func(at time.Time, what string) string { return at.Format(time.DateTime) + " " + what + "\n" }
	plantFile(t, n, "/var/log/dpkg.log", dpkg(before, "install early:all <none> 1.0")+dpkg(between, "upgrade containerd.io:amd64 1.6.1 1.6.2")+
		dpkg(between, "status unpacked containerd.io:amd64 1.6.2")+dpkg(after, "remove late:all 1.0 <none>"))
	plantFile(t, n, "/var/log/dnf.rpm.log", between.Format(iso)+" SUBDEBUG Upgrade: containerd-1.6.2-1.x86_64\n"+
		between.Format(iso)+" SUBDEBUG Upgraded: containerd-1.6.1-1.x86_64\n"+after.Format(iso)+" SUBDEBUG Erase: late-1.0-1.x86_64\n")
	cloud := func(at time.Time, name string) string {
		return at.UTC().Format(time.DateTime) + ",123 - util.py[DEBUG]: Writing to " + name + " - wb: [644] 12 bytes\n"
	}
	plantFile(t, n, "/var/log/cloud-init.log", cloud(between, "/etc/containerd/config.toml")+cloud(between, "/etc/other")+cloud(before, "/etc/containerd/config.toml"))
	if code, out, _ := onNode(t, n, "status", "--since", "26h"); code != 3 || strings.Contains(out, "\nruns\n") || !strings.Contains(out, "config.toml was changed outside gpuadm") {
		t.Errorf("exit code %d: the run is older, and the change is not\n%s", code, out)
	}
	if code, out, _ := onNode(t, n, "status", "--since", "60h"); code != 3 || !strings.Contains(out, "\n    runtime    ~ file /etc/containerd/config.toml\n") {
		t.Errorf("exit code %d: the run's changes are not listed\n%s", code, out)
	}
	code, out, errs := onNode(t, n, "diff")
	if code != 3 {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	at := between.Format(time.DateTime)
	for _, want := range []string{
		at + "  dpkg: upgrade containerd.io:amd64 1.6.1 1.6.2\n", at + "  dnf: Upgrade: containerd-1.6.2-1.x86_64\n", at + "  cloud-init: wrote config.toml\n",
		"changed outside gpuadm, at " + between.Add(time.Minute).Format(day) + "\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, not := range []string{"early", "late", "unpacked", "Upgraded", "other", "No log says"} {
		if strings.Contains(out, not) {
			t.Errorf("%q in\n%s", not, out)
		}
	}
}
