// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// podPID prints the process of the DaemonSet's container: of all processes it alone has this whole
// argument.
const podPID = "grep -lzxs 'daemonse[t]' /proc/[0-9]*/cmdline | cut -d/ -f3"

// victims print the processes that are killed, nothing or 0 where none runs.
var victims = [][2]string{
	{"the pod", podPID},
	{"kubelet", "systemctl show --value --property=MainPID kubelet.service"},
	{"containerd", "systemctl show --value --property=MainPID containerd.service"},
}

// restartsSoon has kubelet restart a container within seconds, however often it dies, and also
// where the container engine was away when it died: then kubelet finds that at its next
// synchronization, after 60 to 90 seconds by default. Sources:
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#configurable-container-restart-delay
// and KEP-5593; https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/ and
// kubernetes, pkg/kubelet/kubelet.go (resyncInterval).
func restartsSoon() kube.Object {
	return kube.Object{"crashLoopBackOff": kube.Object{"maxContainerRestartPeriod": "1s"}, "syncFrequency": "2s"}
}

// killed takes nodes from nothing to ready four times, more often with LAB_ALL. Each time the pod,
// kubelet and containerd of each node are killed, each at a random moment after a new pod is seen
// to run. Each node ends as one without kills does. GPUADM_TEST_SEED repeats the order of the kills
// and the pauses before them. took is how long a node needs without kills.
func killed(t *testing.T, nodes []gpuHost, took time.Duration) {
	t.Helper()
	seed, rounds := uint64(time.Now().UnixNano()), 4
	if text := os.Getenv("GPUADM_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("cannot read GPUADM_TEST_SEED: %v", err)
		}
	}

	if check.All() {
		rounds = 25
	}
	t.Logf("GPUADM_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var undisturbed []lab.Tree
	for _, n := range nodes {
		t.Cleanup(n.aftermath)
		undisturbed = append(undisturbed, n.disk())
	}

	for round := range rounds {
		for _, n := range nodes {
			n.kills(random, took)
		}
		for i, n := range nodes {
			n.recovered(undisturbed[i])
		}
		must.That(t, !t.Failed(), "that was round %d", round)
	}
}

// kills takes gpuadm off the node, as the manifest's head says, but for the DaemonSet. It kills the
// pod, so that a new one begins from nothing, and begins to kill in the node.
func (n gpuHost) kills(random *rand.Rand, took time.Duration) {
	n.t.Helper()
	commands := removal(n.t)
	n.undone(commands[0])
	n.Must("sh", "-c", commands[1])
	script := "kill -9 $(" + podPID + ")\n"
	for _, i := range random.Perm(len(victims)) {
		script += fmt.Sprintf(`sleep 0.1; until [ "$(%s)" ]; do sleep 0.02; done
sleep %.3f
until p=$(%s); [ "${p:-0}" != 0 ] && kill -9 $p; do sleep 0.05; done
echo "$(date +%%T.%%3N) %s, while gpuadm's unit was $(systemctl show --value --property=ActiveState gpuadm-daemonset.service)" >>/run/kills
`, podPID, random.Float64()*took.Seconds()/2, victims[i][1], victims[i][0])
	}

	n.Must("rm", "-f", "/run/kills")
	n.Must("systemd-run", "--quiet", "--unit=kills", "--property=RemainAfterExit=no", "sh", "-c", script)
}

// recovered waits for the kills, and wants a node that is ready and has nothing but what a node
// without kills has.
func (n gpuHost) recovered(undisturbed lab.Tree) {
	n.t.Helper()
	n.active("kills.service", "inactive")
	log := n.Get("/run/kills")
	n.t.Logf("killed on %s:\n%s", n.Name, log)
	is := strings.Count(log, "\n")
	check.That(n.t, is == len(victims), "%d were killed on %s, want %d", is, n.Name, len(victims))
	n.Ready()
	n.c.Until("gpuadm status finds nothing to do", func() string {
		if is := n.Property("gpuadm-daemonset.service", "ActiveState"); is != "inactive" {
			return "an apply is at work: " + is
		}
		if r := n.Exec("/var/lib/gpuadm/daemonset", "status", "-f", "/run/gpuadm/node.toml"); r.Exit != 0 {
			return r.String()
		}
		return ""
	})
	n.condition("True")
	n.untainted()
	check.None(n.t, undisturbed.Diff(n.disk()), "%s has not the files of a node without kills:", n.Name)
}

// aftermath says of a failed test what the node, its pod and its container engine have come to.
func (n gpuHost) aftermath() {
	if n.t.Failed() {
		n.t.Log(n.Name, n.Exec("sh", "-c", "cat /run/kills; date +%T.%3N; ctr -n k8s.io containers list; ctr -n k8s.io tasks list; ps -ef; "+
			"tail -n 30 /run/gpuadm/daemonset.log /var/log/pods/gpuadm*/*/*.log; journalctl --no-pager --lines=100 --unit=gpuadm-daemonset.service --unit=containerd.service"))
	}
}

// disk is what lies on the node's disk, but for what kubelet keeps of its pods, gpuadm's journal,
// which has times, and the fake GPUs.
func (n gpuHost) disk() lab.Tree {
	n.t.Helper()
	tree := n.Tree([]string{"/etc", "/opt", "/root", "/usr", "/var"}, "/var/lib/cni", "/var/lib/kubelet", state+"/blobs")
	delete(tree, "/var/lib/fakenvml.state")
	delete(tree, state+"/journal.jsonl")
	return tree
}
