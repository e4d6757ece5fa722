// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	_ "embed"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/lab"
)

const (
	crioFolder = "/etc/crio/crio.conf.d/"
	crioOurs   = crioFolder + "99-gpuadm.conf"
	crioUnit   = "crio.service"
	crioSocket = "/var/run/crio/crio.sock"

	// As packages of CRI-O bring it, but for the runtime: Debian's runc. A host of the lab has neither
	// iptables nor nft.
	crioPackaged = "[crio.runtime]\ndefault_runtime = \"runc\"\ndisable_hostport_mapping = true\n\n" +
		"[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\nruntime_root = \"/run/runc\"\n"

	// CRI-O asks conmon for its version when it starts, and needs it when it starts a container.
	crioMonitor = "#!/bin/sh\necho conmon version 2.1.13\necho commit: unknown\n"
)

// As contrib/systemd of https://github.com/cri-o/cri-o has it at v1.36.3, with the program where
// packages put it.
//
//go:embed testdata/crio.service
var crioService string

// bootCRIO boots a host on which a real CRI-O is kubelet's engine.
func bootCRIO(t *testing.T, spec string) node {
	t.Helper()
	lab.Nightly(t)
	program := parts.Get(t, parts.CRIO).CRIO.Path
	n := boot(t, lab.Options{
		Dist:  "trixie",
		GPUs:  8,
		Files: map[string]string{"/usr/bin/crio": program},
	})

	n.Must("systemctl", "disable", "--now", daemon)
	n.Must("rm", "/usr/bin/containerd", "/usr/lib/systemd/system/"+daemon)
	n.Must("rm", "-rf", "/etc/containerd")
	n.Put("/usr/bin/conmon", crioMonitor, 0o755)
	n.Put("/usr/bin/pinns", "#!/bin/sh\n", 0o755)
	n.Put("/etc/containers/policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`, 0o644)
	n.Put("/etc/sysconfig/crio", "CRIO_STORAGE_OPTIONS=\"--storage-driver=vfs\"\n", 0o644)
	n.Put(crioFolder+"10-crio.conf", crioPackaged, 0o644)
	n.Put("/usr/lib/systemd/system/"+crioUnit, crioService, 0o644)
	n.Put("/usr/bin/kubelet", kubeletProgram, 0o755)
	n.Put("/etc/systemd/system/kubelet.service",
		"[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint=unix://"+crioSocket+"\n", 0o644)
	n.Put(specFile, "format = 1\n[runtime]\n"+spec, 0o644)
	n.Must("systemctl", "daemon-reload")
	n.Must("systemctl", "start", crioUnit, "kubelet")
	return n
}

// crioHas is what CRI-O says that it has loaded.
func (n node) crioHas() (handler, byDefault bool) {
	n.t.Helper()
	loaded := n.Must("crio", "status", "config")
	return strings.Contains(loaded, "[crio.runtime.runtimes.nvidia]"),
		strings.Contains(loaded, `default_runtime = "nvidia"`)
}

// TestLabCRIO: a real CRI-O has the handler by one start after apply; a second apply does nothing,
// also beside a file of another program; doctor is silent; undo brings back each byte, and a CRI-O
// without the handler.
func TestLabCRIO(t *testing.T) {
	t.Parallel()
	n := bootCRIO(t, "set_as_default = true\n")
	before, pid := n.files(), n.MainPID(crioUnit)
	check.Has(t, n.gpuadm(0, "plan").Stdout, crioOurs, "plan:")
	check.That(t, n.MainPID(crioUnit) == pid, "plan has restarted CRI-O")

	n.gpuadm(0, "apply")
	handler, byDefault := n.crioHas()
	check.That(t, handler && byDefault, "applied: handler %v, default %v", handler, byDefault)
	check.That(t, n.MainPID(crioUnit) != pid, "CRI-O was not restarted")
	doctor := n.Exec("gpuadm", "doctor")
	check.That(t, !strings.Contains(doctor.Stdout, "RUN-"), "doctor after a right apply: %s", doctor)

	pid = n.MainPID(crioUnit)
	idle := func(when string) {
		t.Helper()
		again := n.gpuadm(0, "apply")
		check.That(t, again.Stdout == "Nothing to do.\n", "%s: %s", when, again)
		check.That(t, n.MainPID(crioUnit) == pid, "%s: CRI-O was restarted", when)
	}

	idle("apply again")
	const site = crioFolder + "20-site.conf"
	n.Put(site, "[crio.runtime]\nlog_level = \"warn\"\n", 0o644)
	n.Must("systemctl", "restart", crioUnit)
	pid = n.MainPID(crioUnit)
	idle("beside a file of the site")

	n.gpuadm(0, "undo", "--to", "all")
	handler, byDefault = n.crioHas()
	check.That(t, !handler && !byDefault, "undone: handler %v, default %v", handler, byDefault)
	n.Must("rm", site)
	check.None(t, before.Diff(n.files()), "undo left:")
}

// TestLabCRIOVerdict: what gpuadm says of a tree, before it touches anything, is what a real start
// of CRI-O shows. A tree that CRI-O refuses restarts nothing, and the file is named.
func TestLabCRIOVerdict(t *testing.T) {
	t.Parallel()
	n := bootCRIO(t, "")
	starts := func() bool {
		n.Exec("systemctl", "reset-failed", crioUnit)
		return n.Exec("systemctl", "restart", crioUnit).Exit == 0
	}

	const settings = "printf '[crio.runtime]\n%s\n' >F/20-x.conf"
	set := func(line string) string { return strings.Replace(settings, "%s", line, 1) }
	for _, x := range []struct{ name, breaks, says string }{
		{"a setting of the site", set(`log_level = "warn"`), ""},
		{"an empty file", ": >F/20-x.conf", ""},
		{"a comment without a line end", "printf '# end' >F/20-x.conf", ""},
		{"a key that CRI-O does not know", set("no_such_key = 1"), ""},
		{"a table that CRI-O does not know", "printf '[crio.nothing]\nx = 1\n' >F/20-x.conf", ""},
		{"a link to /dev/null", "ln -s /dev/null F/20-x.conf", ""},
		{"a folder", "mkdir F/20-x.conf", ""},
		{"no TOML", "printf '[crio.runtime\n' >F/20-x.conf", "20-x.conf"},
		{"a wrong type", set(`pids_limit = "many"`), "20-x.conf"},
		{"a link to nothing", "ln -s /opt/missing.conf F/20-x.conf", "20-x.conf"},
		{"a default that is not there", set(`default_runtime = "gone"`), "20-x.conf"},
		{"a wrong value", set(`log_level = "loud"`), "loud"},
		{"a wrong cgroup manager", set(`cgroup_manager = "none"`), "20-x.conf"},
		{"a runtime without its program", set(`runtimes.kata.runtime_path = "/opt/kata"`), ""},
		{"no program of the default", set(`runtimes.runc.runtime_path = "/opt/runc"`), "20-x.conf"},
		{"a suffix of an editor", "printf '[crio.runtime\n' >F/20-x.conf.bak", "20-x.conf.bak"},
	} {
		t.Run(x.name, func(t *testing.T) {
			n := node{n.Host, t}
			pid := n.MainPID(crioUnit)
			n.Must("sh", "-c", strings.ReplaceAll(x.breaks, "F/", crioFolder))
			broken := n.files()
			plan := n.Exec("gpuadm", "plan")
			if plan.Exit != 0 {
				r := n.gpuadm(1, "apply")
				check.Has(t, r.Stderr, x.says, "apply:")
				repair := n.Exec("gpuadm", "repair", "RUN-002")
				check.That(t, repair.Exit != 0, "repair: %s", repair)
				check.That(t, n.MainPID(crioUnit) == pid, "CRI-O was restarted")
				check.None(t, broken.Diff(n.files()), "touched:")
			} else {
				n.gpuadm(0, "apply")
				n.gpuadm(0, "undo", "--to", "all")
			}

			serves := starts()
			judged := plan.Exit == 0
			check.That(t, serves == judged, "CRI-O starts: %v; %s\n%s", serves, plan, n.Journal(crioUnit))

			n.Must("sh", "-c", "rm -rf "+crioFolder+"20-x.*")
			check.That(t, starts(), "CRI-O does not start without it: %s", n.Journal(crioUnit))
		})
	}
}

// TestLabCRIOLater: a later file's default_runtime counts, so one that asks for another than the
// spec is refused by its name, and nothing is touched.
func TestLabCRIOLater(t *testing.T) {
	t.Parallel()
	n := bootCRIO(t, "set_as_default = true\n")
	const later = crioFolder + "99-z.conf"
	n.Put(later, "[crio.runtime]\ndefault_runtime = \"runc\"\n", 0o644)
	n.Must("systemctl", "restart", crioUnit)
	pid := n.MainPID(crioUnit)
	for _, verb := range []string{"plan", "apply"} {
		r := n.gpuadm(1, verb)
		check.Has(t, r.Stdout+r.Stderr, later, "%s:", verb)
	}

	check.That(t, n.MainPID(crioUnit) == pid, "CRI-O was restarted")

	n.Must("rm", later)
	n.Must("systemctl", "restart", crioUnit)
	n.gpuadm(0, "apply")
	n.Put(later, "[crio.runtime]\ndefault_runtime = \"runc\"\n", 0o644)
	n.Must("systemctl", "restart", crioUnit)
	status := n.Exec("gpuadm", "status")
	check.That(t, status.Exit != 0, "another file has the default: %s", status)
	n.gpuadm(0, "undo", "--to", "all")
	check.That(t, n.Get(later) != "", "undo has taken another's file")
	handler, _ := n.crioHas()
	check.That(t, !handler, "undone, and CRI-O has the handler")
}
