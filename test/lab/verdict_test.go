// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
)

// nowhere is a link in the folder that containerd imports, which leads to nothing: then no
// containerd starts, and 2.x says so to its own start alone.
const nowhere = "/etc/containerd/conf.d/10-x.toml"

// TestLabVerdict: nothing restarts a containerd whose next start fails: no apply, no repair, no
// undo. Each names the file.
func TestLabVerdict(t *testing.T) {
	t.Parallel()
	for _, o := range []lab.Options{
		{Dist: "bookworm", GPUs: 8},
		{Dist: "trixie", GPUs: 8},
		{Dist: "trixie", GPUs: 8, Containerd: "2.4"},
	} {
		t.Run(o.Dist+" "+o.Containerd, func(t *testing.T) {
			n := boot(t, o)
			n.Must("sh", "-c", "rm -rf /etc/containerd && mkdir -p /etc/containerd/conf.d")
			n.Put(config, "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n", 0o644)
			n.Must("systemctl", "restart", daemon)
			n.answers()
			pid := n.MainPID(daemon)
			runs := func(after string) {
				t.Helper()
				now := n.MainPID(daemon)
				check.That(t, now == pid, "%s: containerd's process is %d, was %d", after, now, pid)
			}

			n.Must("ln", "-s", "/opt/missing.toml", nowhere)
			broken := n.everything()
			for _, args := range [][]string{{"plan"}, {"apply", "--yes"}, {"repair", "RUN-002", "--yes"}} {
				r := n.gpuadm(1, args...)
				check.Has(t, r.Stdout+r.Stderr, nowhere, "%v:", args)
				runs(strings.Join(args, " "))
			}

			check.None(t, broken.Diff(n.everything()), "touched:")

			n.Must("rm", nowhere)
			n.gpuadm(0, "apply", "--yes")
			n.working()
			pid = n.MainPID(daemon)
			n.Must("ln", "-s", "/opt/missing.toml", nowhere)
			applied := n.everything()
			r := n.gpuadm(1, "undo", "--yes")
			check.Says(t, r.Stderr, nowhere, "runs on with what it has loaded", "--leave 'restart containerd.service'")
			runs("undo")
			check.None(t, applied.Diff(n.everything()), "undo has failed, and left:")

			n.gpuadm(0, "undo", "--yes", "--leave", "restart "+daemon)
			runs("undo without the restart")
			check.None(t, broken.Diff(n.everything()), "not undone:")
		})
	}
}

// TestLabUndoToADeadEngine: where containerd did not run before the undo, undo returns to the files
// as they were, and says that containerd stays down.
func TestLabUndoToADeadEngine(t *testing.T) {
	t.Parallel()
	n := boot(t, lab.Options{Dist: "trixie", GPUs: 8})
	n.Must("sh", "-c", "rm -rf /etc/containerd && mkdir -p /etc/containerd/conf.d")
	n.Put(config, "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n", 0o644)
	n.Must("systemctl", "restart", daemon)
	n.answers()
	before := n.everything()
	n.gpuadm(0, "apply", "--yes")

	n.Must("ln", "-s", "/opt/missing.toml", nowhere)
	n.Exec("systemctl", "kill", "--signal=KILL", daemon)
	ended := func() bool { return n.MainPID(daemon) == 0 }
	check.That(t, eventually(ended), "containerd runs")
	r := n.gpuadm(0, "undo", "--yes")
	check.Says(t, r.Stdout+r.Stderr, "left", nowhere)
	n.Must("rm", nowhere)
	check.None(t, before.Diff(n.everything()), "not undone:")
}

// TestLabNoFile: a containerd without a configuration file serves pods by its defaults, and so does
// one whose file is a link to nothing. An apply makes the file, and an undo takes it away; each
// restarts the daemon once.
func TestLabNoFile(t *testing.T) {
	t.Parallel()
	for _, o := range []lab.Options{
		{Dist: "bookworm", GPUs: 8},
		{Dist: "trixie", GPUs: 8},
		{Dist: "trixie", GPUs: 8, Containerd: "2.4"},
	} {
		t.Run(o.Dist+" "+o.Containerd, func(t *testing.T) {
			n := boot(t, o)
			for _, begin := range []string{"true", "ln -s /opt/missing.toml " + config} {
				n.Must("sh", "-c", "rm -rf /etc/containerd; mkdir /etc/containerd; "+begin)
				n.Must("systemctl", "restart", daemon)
				n.answers()
				before, pid := n.everything(), n.MainPID(daemon)
				restarted := func(when string) {
					t.Helper()
					now := n.MainPID(daemon)
					check.That(t, now != pid, "%s, %s: containerd was not restarted", begin, when)
					pid = now
				}

				n.gpuadm(0, "plan")
				doctor := n.Exec("gpuadm", "doctor")
				check.That(t, !strings.Contains(doctor.Stdout, "RUN-003"), "%s: %s", begin, doctor)
				n.gpuadm(0, "apply", "--yes")
				restarted("applied")
				n.configured()
				again := n.gpuadm(0, "apply", "--yes")
				check.That(t, again.Stdout == "Nothing to do.\n", "%s: %s", begin, again)

				n.gpuadm(0, "undo", "--yes", "--to", "all")
				restarted("undone")
				n.answers()
				check.None(t, before.Diff(n.everything()), "%s: undo left:", begin)
			}
		})
	}
}
