// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"errors"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestPolicies: a change that would take a partition from a process touches nothing under any policy. It waits under idle and drain, and is
// refused under never; an operator's word goes before all three.
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

// TestPolicyLate: a process that comes while the change is at work has the stage rolled back, and the run ends, whatever the policy; the same
// command makes the change once the process has ended.
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

// TestPolicyPartitions: partitions and containers do not go by waiting, so no policy waits for that.
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
