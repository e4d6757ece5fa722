// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/lab/kube"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestLabKubeTroubles: what may go wrong between a machine and its cluster ends with the exit code that says what to do, with
// nothing half done, and the next apply heals it.
func TestLabKubeTroubles(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "troubles", "trixie")
	join := n.join()
	n.wants("[runtime]\n[node]\n", join)

	t.Log("the API server is not there at the first join")
	n.Must("ip", "link", "set", "host0", "down")
	began := time.Now()
	n.gpuadm(75, []string{"apply"}, "cannot reach https://", "curl -kv")
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %v, and half a minute is enough to know", took)
	}
	if is := n.Property("kubelet.service", "ActiveState"); is == "active" {
		t.Error("kubelet runs, and has no certificate")
	}
	n.wire()
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
	n.expired()
	r := n.gpuadm(1, []string{"apply"}, "kubeadm token create", "ran out on")
	if !strings.Contains(r.Stderr, "try") {
		t.Errorf("it does not say what to do: %s", r)
	}
	n.join()
	n.settled()
	n.Ready()
	n.condition("True")

	t.Log("the API server is not there when the spec has changed")
	n.wants("[runtime]\n[node]\nlabels = { \"example.com/pool\" = \"a\" }\n", join)
	n.Must("ip", "link", "set", "host0", "down")
	n.gpuadm(75, []string{"apply"})
	n.wire()
	n.settled()
	if is := kube.Text(n.Object(), "metadata", "labels", "example.com/pool"); is != "a" {
		t.Errorf("label %q", is)
	}

	t.Log("the section [join] is gone: it is released")
	pid := n.MainPID("kubelet.service")
	n.wants("[runtime]\n[node]\nlabels = { \"example.com/pool\" = \"b\" }\n")
	n.settled()
	n.Ready()
	n.condition("True")
	if is := kube.Text(n.Object(), "metadata", "labels", "example.com/pool"); is != "b" || n.MainPID("kubelet.service") != pid {
		t.Errorf("label %q, kubelet was %d", is, pid)
	}

	t.Log("the API server is not there at undo")
	undo := []string{"undo", "--to", "all"}
	n.Must("ip", "link", "set", "host0", "down")
	n.gpuadm(75, undo, "cannot read the state of node ", "does not answer", "nothing was touched", "wait, and run the same command again", "--leave")
	if now := n.MainPID("kubelet.service"); now != pid {
		t.Errorf("an undo that waits: kubelet was %d, is %d", pid, now)
	}
	n.wire()
	n.gpuadm(0, undo)
	if is := n.Property("kubelet.service", "ActiveState"); is == "active" {
		t.Error("kubelet still runs")
	}
	if o := n.Object(); kube.Text(o, "metadata", "labels", "example.com/pool") != "" || kube.Condition(o, gpuReady)["status"] == "True" {
		t.Errorf("the Node after undo: %s", n.Describe())
	}
}

// TestLabKubeApproval: where the cluster approves no request by itself, the apply names the one that waits, and the next goes on with
// it once it was approved. The token may not read nodes: the run says that the name was not checked.
func TestLabKubeApproval(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "approval", "trixie")
	const group = "system:bootstrappers:byhand"
	c.Apply(kube.Object{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": kube.Object{"name": "by-hand"},
		"roleRef":  kube.Object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper"},
		"subjects": []kube.Object{{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}},
	})
	join := n.join() + "cluster_dns = [\"10.96.0.10\"]\n"
	token := must.Get(c.GroupToken(t.Context(), time.Hour, group))(t)
	n.Put(tokenFile, token+"\n", 0o600)
	n.wants("[runtime]\n[node]\n", join)
	const approve = "kubectl certificate approve "
	r := n.gpuadm(75, []string{"apply"}, "the name "+n.Name+" was not checked", "waits to be approved", approve+"csr-")
	_, name, _ := strings.Cut(r.Stderr, approve)
	name, _, _ = strings.Cut(name, ",")
	name, _, _ = strings.Cut(name, ";")
	c.Merge("/apis/certificates.k8s.io/v1/certificatesigningrequests/"+name+"/approval", kube.Object{"status": kube.Object{
		"conditions": []kube.Object{{"type": "Approved", "status": "True", "reason": "ByHand", "message": "by the test"}},
	}})
	n.settled()
	n.Ready()
	n.secrets(token)
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

// expired puts the place of the node's certificate one that has run out, by the clock: of the day it was made.
func (n gpuHost) expired() {
	n.t.Helper()
	text := must.Get(n.c.Expired(n.Name))(n.t)
	current := strings.TrimSpace(n.Must("readlink", "-f", "/var/lib/kubelet/pki/kubelet-client-current.pem"))
	n.Put(current, text, 0o600)
}
