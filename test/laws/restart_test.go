// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

// TestNoRestartForWhatWasNotWritten: where a full disk keeps a file from being written, the daemon
// that reads it is not restarted.
func TestNoRestartForWhatWasNotWritten(t *testing.T) {
	tested := 0
	for _, m := range machines(t) {
		e := engine(t, sections["default"])
		if len(plan(t, m.boot(t), e).Cannot()) > 0 {
			continue
		}
		for at := range 40 {
			n := m.boot(t)
			n.Fail(at, syscall.ENOSPC)
			_, err := engine(t, sections["default"]).Apply(t.Context(), n)
			if err == nil || !strings.HasPrefix(err.Error(), "cannot make file ") {
				continue
			}
			why := strings.Join(rolledBack(err), ", ")
			if strings.Contains(why, "file ") {
				continue // it was written, and only its folder could not be synced
			}
			tested++
			check.That(t, !strings.Contains(why, "restart "), "%s, touch %d: %v: undone %s", m.name, at, err, why)
		}
	}

	check.That(t, tested >= 10, "only %d failed writes", tested)
}

// TestNoRestartForAFolder: a folder that the daemon reads is made, and the disk is full before a
// file is in it. The daemon is not restarted because the folder came and went, and the next apply
// restarts it once.
func TestNoRestartForAFolder(t *testing.T) {
	m := recordedAs(t, "a100-mixed-t4")
	tested := 0
	for at := range 40 {
		n := m.boot(t)
		must.OK(t, errors.Join(n.Remove("/srv/containerd/d/10-runc.toml"), n.Remove("/srv/containerd/d")))
		n.Reboot()
		n.Fail(n.Touches()+at, syscall.ENOSPC)
		_, err := engine(t, sections["default"]).Apply(t.Context(), n)
		why := strings.Join(rolledBack(err), ", ")
		if err == nil || strings.Contains(why, "file ") {
			continue // it was written, and only its folder could not be synced
		}
		check.That(t, !strings.Contains(why, "restart "), "touch %d: %v: undone %s", at, err, why)
		if !strings.Contains(why, "folder ") {
			continue
		}
		tested++
		n.Reboot() // nothing fails any more
		made := apply(t, n, engine(t, sections["default"])).Made
		got := names(made)
		check.That(t, strings.Count(got, "restart ") == 1, "touch %d: then made %s", at, got)
	}

	check.That(t, tested >= 5, "only %d folders came and went", tested)
}

func rolledBack(err error) []string {
	var t *trouble.Error
	if errors.As(err, &t) {
		return t.Undone
	}
	return nil
}

// TestRestartOnce: a daemon is one line of a plan, and is restarted once, where its configuration
// imports more than when gpuadm first edited it: then what it reads is another list of files, and
// gpuadm's part lies in another file.
func TestRestartOnce(t *testing.T) {
	const config, imports = "/srv/containerd/config.toml", "imports = [\"/srv/containerd/d/*.toml\"]\n"
	n := recordedAs(t, "a100-mixed-t4").boot(t)
	others := func(old, new string) {
		t.Helper()
		found, err := n.ReadFile(config)
		must.That(t, err == nil && bytes.Contains(found, []byte(old)), "%v\n%s", err, found)
		must.OK(t, n.WriteFile(config, bytes.Replace(found, []byte(old), []byte(new), 1), host.Attr{Mode: 0o644}))
	}

	once := func(what string, changes []converge.Line) {
		t.Helper()
		restarts := 0
		for _, c := range changes {
			if c.Kind == "restart" {
				restarts++
			}
		}

		check.That(t, restarts == 1, "%s: containerd is to be restarted %d times", what, restarts)
	}

	others(imports, "")
	apply(t, n, engine(t, "[runtime]\nset_as_default = true\n"))
	others("version = 3\n", "version = 3\n"+imports)
	again := engine(t, "[runtime]\nhandler = \"gpu\"\n")
	once("a changed spec", plan(t, n, again).Changes)
	apply(t, n, again)
	p := must.Get(again.PlanUndo(context.Background(), n.View(), "all", nil))(t)
	once("undo", p.Changes)
	undo(t, n, again, "all")
}

// TestPolicies: a change that would take a partition from a process touches nothing under any
// policy. It waits under idle and drain, and is refused under never; an operator's word goes before
// all three.
func TestPolicies(t *testing.T) {
	for policy, waits := range map[string]bool{"idle": true, "drain": true, "never": false} {
		n := withProcesses(t, sevenBusy)
		n.Use(first, 2, 4711)
		opens(t, n, 4711, "/dev/nvidia0")
		e := engine(t, wantsMIG(`"1g.5gb" = 7`)+"[disruption]\npolicy = \""+policy+"\"\n")
		before, touches := ids(t, n), n.Touches()
		_, err := e.Apply(t.Context(), n)
		if !errors.Is(err, converge.ErrInUse) || trouble.Passes(err) != waits || n.Touches() != touches {
			t.Errorf("%s: %v, passes %v, %d touches", policy, err, trouble.Passes(err), n.Touches()-touches)
		}
		compare(t, policy, before, ids(t, n))
		e.Allow = []string{"stop-clients"}
		apply(t, n, e)
	}
}

// TestPolicyLate: a process that comes while the change is at work has the stage rolled back, and
// the run ends, whatever the policy; the same command makes the change once the process has ended.
func TestPolicyLate(t *testing.T) {
	n := withProcesses(t, sevenBusy)
	before := ids(t, n)
	e := engine(t, wantsMIG(`"1g.5gb" = 7`))
	_, err := e.Apply(t.Context(), &comes{Node: n, t: t})
	if !errors.Is(err, converge.ErrInUse) || !trouble.Passes(err) {
		t.Errorf("%v, passes %v", err, trouble.Passes(err))
	}
	compare(t, "after that", before, ids(t, n))
	runs := converge.ReadJournal(n).Runs()
	check.That(t, len(runs) == 1 && runs[0].Result == "failed", "the run is open: %+v", runs)
	ends(t, n, 4711)
	apply(t, n, e)
}

// ends has a process of the simulated machine end.
func ends(t *testing.T, n *simhost.Node, pid int) {
	t.Helper()
	must.OK(t, n.Terminate(pid))
}

// TestPolicyPartitions: partitions and containers do not go by waiting, so no policy waits for
// that.
func TestPolicyPartitions(t *testing.T) {
	n := node(t)
	for what, waits := range map[string]bool{"lose-partitions": false, "stop-containers": false, "stop-clients": true} {
		e := engineOf(t, stage(converge.Want{
			Thing: pkgThing{"a"}, To: to("1"), Breaks: []string{what}, Clients: map[string][]string{what: {"GPU 0: 1 MIG instance"}},
		}))
		e.Spec.Disruption.Policy = "idle"
		if err := e.Interrupts(t.Context(), n); !errors.Is(err, converge.ErrInUse) || trouble.Passes(err) != waits {
			t.Errorf("%s: %v, passes %v", what, err, trouble.Passes(err))
		}
	}
}

// TestPolicyPartitionsFirst: where a change also takes the GPUs from processes, a run does not wait
// for these first: it would refuse the same change afterwards.
func TestPolicyPartitionsFirst(t *testing.T) {
	e := engineOf(t, stage(converge.Want{
		Thing:  pkgThing{"a"},
		To:     to("1"),
		Breaks: []string{"stop-clients", "lose-partitions"},
		Clients: map[string][]string{
			"stop-clients":    {"process 4711 (python3)"},
			"lose-partitions": {"GPU 0: 1 MIG instance"},
		},
	}))
	e.Spec.Disruption.Policy = "idle"
	err := e.Interrupts(t.Context(), node(t))
	must.That(t, err != nil && !trouble.Passes(err), "it waits: %v", err)
	check.Has(t, err.Error(), "needs lose-partitions", "the refusal")
}

// TestOneAdvice: of a GPU that fell off the bus preflight, the kernel's log and doctor say the
// same, and what a stop of the instance loses.
func TestOneAdvice(t *testing.T) {
	advice := faults.Of("GPU-001").Fix
	check.That(t, strings.Contains(advice, "power the machine off and on") && strings.Contains(advice, "loses what is on its local disks"), "%v", advice)
	all := stages.Sequence()
	preflight := all[slices.IndexFunc(all, func(st converge.Stage) bool {
		return st.Name == "preflight"
	})]
	wants, err := preflight.Wants(specs.Of(t, "[driver]\ngpu_count = 8\n"), facts.Facts{Live: true})
	must.That(t, err == nil && len(wants) == 1, "%v %v", wants, err)
	found, err := wants[0].Thing.Look(t.Context(), changed(t, "aks-ubuntu2204", nil))
	must.OK(t, err)
	_, err = wants[0].To(found)
	tr := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &tr) && slices.Contains(tr.Try, advice), "preflight: %v", err)
	for _, c := range doctor.Checks() {
		check.That(t, c.Code != "GPU-001" || c.Fix == advice, "doctor: %s", c.Fix)
	}
	got := faults.Meanings([]string{"NVRM: GPU 0000:17:00.0: GPU has fallen off the bus."})
	check.That(t, len(got) == 1 && strings.HasSuffix(got[0], advice), "the kernel's log: %q", got)
	for _, line := range []string{"NVRM: Xid (PCI:0000:17:00): 79, pid=1", "NVRM: Xid (PCI:0000:17:00): 143, pid=1"} {
		got := strings.Join(faults.Meanings([]string{line}), "\n")
		check.That(t, strings.Contains(got, "power the machine off and on") && strings.Contains(got, "loses what is on its local disks"), "%s: %s", line, got)
	}
}

// TestPreflightWaitsForAKS: no stage touches a machine of AKS's before its scripts have ended,
// which may remove a driver by path.
func TestPreflightWaitsForAKS(t *testing.T) {
	const spec = "[driver]\n[runtime]\n"
	for _, gone := range []string{"", "-/opt/azure/containers/provision.complete"} {
		files := map[string]string{gone: ""}
		delete(files, "")
		n := changed(t, "aks-ubuntu2204", files)
		e := engine(t, spec)
		e.Stages = slices.DeleteFunc(e.Stages, func(st converge.Stage) bool {
			return st.Name != "preflight"
		})
		_, err := e.Apply(t.Context(), n)
		check.That(t, trouble.Passes(err) == (gone != "") && (gone != "" || err == nil), "%q: %v", gone, err)
	}
}

// TestPreflightGKEPlugin: Google's device plugin finds no driver but Google's, so where gpuadm
// installs one the pool must keep that plugin off, and gpuadm says so before anything is installed.
func TestPreflightGKEPlugin(t *testing.T) {
	for _, c := range []struct{ name, machine, options, spec, want string }{
		{"labelled", "gke-ubuntu", "", "[driver]\nversion = \"580\"\n", ""},
		{
			"not labelled", "gke-ubuntu", "--node-labels=a=b", "[driver]\nversion = \"580\"\n",
			"cannot install a driver on this node of GKE",
		},
		{
			"labelled otherwise", "gke-ubuntu",
			"--node-labels=gke-no-default-nvidia-gpu-device-plugin=false",
			"[driver]\nversion = \"580\"\n",
			"cannot install a driver on this node of GKE",
		},
		{"no driver is asked for", "gke-ubuntu", "--node-labels=a=b", "[driver]\n[runtime]\n", ""},
		{"the driver is another's", "gke-ubuntu", "--node-labels=a=b", "[driver]\nversion = \"580\"\nowner = \"other\"\n", ""},
	} {
		files := map[string]string{}
		if c.options != "" {
			files["/etc/default/kubelet"] = "KUBELET_OPTS=\"--kubeconfig=/var/lib/kubelet/kubeconfig --config /home/kubernetes/kubelet-config.yaml " + c.options + "\"\n"
		}
		e := engine(t, c.spec)
		e.Stages = slices.DeleteFunc(e.Stages, func(st converge.Stage) bool {
			return st.Name != "preflight"
		})
		var cannot []string
		for _, ch := range plan(t, changed(t, c.machine, files), e).Changes {
			if ch.Cannot != "" {
				cannot = append(cannot, ch.Cannot+"\n"+strings.Join(ch.Try, "\n"))
			}
		}

		got := strings.Join(cannot, "\n")
		check.That(t, (c.want != "" || got == "") && strings.Contains(got, c.want), "%s: %q", c.name, got)
		check.That(t, c.want == "" || (strings.Contains(got, "gke-no-default-nvidia-gpu-device-plugin=true") && strings.Contains(got, "exactly one device plugin")),
			"%s: no advice: %s", c.name, got)
	}
}
