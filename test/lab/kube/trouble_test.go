// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeTroubles: what may go wrong between a machine and its cluster ends with the exit code that says what to do, with
// nothing half done, and the next apply heals it.
func TestLabKubeTroubles(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "troubles", "trixie")
	n.prepared("[runtime]\n[node]\n")
	n.settled()
	n.Ready()

	t.Log("the node was deleted")
	c.Delete("/api/v1/nodes/" + n.Name)
	n.gpuadm(75, []string{"apply"}, "restart kubelet")
	n.Must("systemctl", "restart", "kubelet.service")
	n.settled()
	n.Ready()
	n.condition("True")

	t.Log("the certificate has run out")
	n.Must("systemctl", "stop", "kubelet.service")
	current, whole := n.expired()
	n.gpuadm(1, []string{"apply"}, "has run out on")
	n.Put(current, whole, 0o600)
	n.Must("systemctl", "start", "kubelet.service")
	n.settled()
	n.Ready()
	n.condition("True")

	t.Log("the API server is not there when the spec has changed")
	n.wants("[runtime]\n[node]\nlabels = { \"example.com/pool\" = \"a\" }\n")
	n.Must("ip", "link", "set", "host0", "down")
	n.gpuadm(75, []string{"apply"})
	n.wire()
	n.settled()
	check.Equal(t, kube.Text(n.Object(), "metadata", "labels", "example.com/pool"), "a", "label")

	t.Log("the API server is not there at undo")
	pid, undo := n.MainPID("kubelet.service"), []string{"undo", "--to", "all"}
	n.Must("ip", "link", "set", "host0", "down")
	n.gpuadm(75, undo, "cannot read the state of node ", "does not answer", "nothing was touched", "wait, and run the same command again", "--leave")
	check.Equal(t, n.MainPID("kubelet.service"), pid, "an undo that waits: kubelet was %d, is", pid)
	n.wire()
	n.gpuadm(0, undo)
	n.active("kubelet.service", "active")
	if o := n.Object(); kube.Text(o, "metadata", "labels", "example.com/pool") != "" || kube.Condition(o, gpuReady)["status"] == "True" {
		t.Errorf("the Node after undo: %s", n.Describe())
	}
}

// wire plugs the network in again.
func (n gpuHost) wire() {
	n.t.Helper()
	n.Must("ip", "link", "set", "host0", "up")
	n.Must("networkctl", "reconfigure", "host0")
	n.c.Until("the network is there", func() string {
		if r := n.Exec("bash", "-c", "echo > /dev/tcp/10.200.0.1/6443"); r.Exit != 0 {
			return r.Stderr
		}
		return ""
	})
}

// expired puts a certificate that has run out, by the clock, in the place of the node's, and returns that with its file.
func (n gpuHost) expired() (current, whole string) {
	n.t.Helper()
	text := must.Get(n.c.Expired(n.Name))(n.t)
	current = strings.TrimSpace(n.Must("readlink", "-f", "/var/lib/kubelet/pki/kubelet-client-current.pem"))
	whole = n.Get(current)
	n.Put(current, text, 0o600)
	return current, whole
}
