// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/labstage"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKilledWhileChildRuns: gpuadm is killed with signal 9 while a command that it started still runs. That command
// goes on changing the machine, so the next gpuadm touches nothing: it exits with 75 and names the command and its
// process. Once that has ended, gpuadm works.
func TestLabKilledWhileChildRuns(t *testing.T) {
	t.Parallel()
	withStage := withLabStage(t)
	each(t, nil, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		const slow = "/usr/local/sbin/gpuadm-slow"
		n.Put(slow, withStage, 0o755)
		n.Put(labstage.Slow, "", 0o644)
		n.Must("systemd-run", "--unit=first", "--property=KillMode=process", slow, "apply")
		child := n.process(labstage.Sleep)
		parent := n.MainPID("first.service")
		busy := fmt.Sprintf("gpuadm: another gpuadm run is at work: process %d (%s apply)", parent, slow)
		r := n.gpuadm(75, "apply")
		check.That(t, strings.HasPrefix(r.Stderr, busy), "while both run it does not say %q: %s", busy, r)

		n.KillMain("first.service")
		must.That(t, n.process(labstage.Sleep) == child, "the child did not survive gpuadm")
		before, pid := n.everything(), n.MainPID(daemon)
		busy = fmt.Sprintf("gpuadm: another gpuadm run is at work: process %s (%s)", child, labstage.Sleep)
		for _, verb := range []string{"apply", "undo"} {
			r := n.gpuadm(75, verb)
			if !strings.HasPrefix(r.Stderr, busy) || !strings.Contains(r.Stderr, "try      wait until it has ended") {
				t.Errorf("%s does not say %q and what to do: %s", verb, busy, r)
			}
			t.Logf("%s: %s", verb, r)
		}
		if diff := before.Touched(n.everything()); diff != "" || n.MainPID(daemon) != pid {
			t.Errorf("containerd's process is %d, was %d; touched:\n%s", n.MainPID(daemon), pid, diff)
		}
		n.gpuadm(3, "status") // looking is allowed meanwhile

		n.Must("kill", child)
		eventually(func() bool { return n.Exec("test", "-e", "/proc/"+child).Exit != 0 })
		n.Must("rm", labstage.Slow, slow)
		n.gpuadm(0, "apply")
		n.configured()
		n.working()
		n.gpuadm(0, "status")
	})
}

// process is the one process with this command line, in the host's numbers; it waits for it to come.
func (n node) process(command string) string {
	n.t.Helper()
	var pids []string
	if !eventually(func() bool {
		pids = strings.Fields(n.Exec("pgrep", "--full", "--exact", command).Stdout)
		return len(pids) == 1
	}) {
		n.t.Fatalf("processes %q: %v", command, pids)
	}
	return pids[0]
}
