// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

const (
	// measured is how many applies of a converged node are measured.
	measured = 10
	// mostRequests is how many requests one of them may send: a defect that asks in a loop is seen here, and by no other test.
	mostRequests = 3
	// hourly is how often the shipped manifest applies: each ten minutes.
	hourly = 6
)

// requests counts what the pod and the machine's apply have asked the API server for, and how many applies that were: before each the
// pod tries once whether the policy limits its account.
func (n gpuHost) requests() (count map[string]int, applies int) {
	count = map[string]int{}
	for _, request := range append(n.c.PodsRequests(accountUser, n.Name), n.c.Requests(n.user())...) {
		count[request]++
	}
	return count, count["patch /api/v1/nodes/"+n.Name+"?dryRun=All"]
}

// cheap measures what the DaemonSet costs on a node that is converged.
func (n gpuHost) cheap() {
	n.t.Helper()
	const pid = `for p in /proc/[0-9]*; do [ "$(tr '\0' ' ' <$p/cmdline 2>/dev/null)" = "/usr/local/sbin/gpuadm daemonset --every 1s " ] && break; done; `
	ticks := func() (t int) { // of 10 ms, user and system
		for _, word := range strings.Fields(n.Must("sh", "-c", pid+`cut -d' ' -f14,15 $p/stat`)) {
			var some int
			must.Get(fmt.Sscan(word, &some))(n.t)
			t += some
		}
		return t
	}
	before, began := n.requests()
	spent := ticks()
	after, applies, waiting := before, 0, 0
	n.c.Until("converged applies are over", func() string {
		var kilobytes int
		_, err := fmt.Sscan(n.Must("sh", "-c", pid+"sed -n 's/^VmRSS://p' $p/status"), &kilobytes)
		if err == nil && (waiting == 0 || kilobytes < waiting) {
			waiting = kilobytes
		}
		if after, applies = n.requests(); applies < began+measured {
			return fmt.Sprintf("%d of %d", applies-began, measured)
		}
		return ""
	})
	applies -= began
	sum := 0
	for request := range after {
		after[request] -= before[request]
		sum += after[request]
	}
	took := time.Duration(ticks()-spent) * 10 * time.Millisecond
	n.t.Logf("converged, %d applies: %d requests, %s of CPU in the pod, %d kB resident while it waits\n%v\n%s", applies, sum, took, waiting, after,
		n.Must("sh", "-c", pid+"grep VmHWM $p/status"))
	n.t.Logf("an hour, %d applies: %d requests and %s of CPU in the pod", hourly, hourly*sum/applies, took*hourly/time.Duration(applies))
	n.t.Logf("apply in the machine: %s",
		n.Exec("bash", "-c", "time -p /var/lib/gpuadm/daemonset apply --unattended -f /run/gpuadm/node.toml >/dev/null"))
	if sum > mostRequests*(applies+1) {
		n.t.Errorf("%d applies that change nothing sent %d requests", applies, sum)
	}
}
