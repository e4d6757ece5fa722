// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// The user's file is merged last; taints are never lost by it.
func TestKubeletConfigIsMergedLast(t *testing.T) {
	archive := joins.Machine + "-- etc/gpuadm/kubelet.yaml --\nfailSwapOn: false\nrotateCertificates: null\nauthentication: {x509: {clientCAFile: /else}}\nclusterDNS: [10.0.0.1]\n" +
		"registerWithTaints:\n- {key: a, effect: NoSchedule, value: theirs}\n- {key: b, effect: NoExecute}\n"
	j := startJoin(t, archive, "kubelet_config = \"/etc/gpuadm/kubelet.yaml\"\nnode_name = \"gpu-1\"\n[node]\nstartup_taint = \"none\"\ngpu_labels = false\nlabels = { pool = \"h200\" }\ntaints = [\"a=ours:NoSchedule\", \"c=ours:NoSchedule\"]\n")
	j.apply(t)
	config := j.read(t, kubelet.ConfigFile)
	for _, want := range []string{"failSwapOn: false", "clientCAFile: /else", "- 10.0.0.1", "anonymous:\n        enabled: false", "value: theirs", "key: b", "key: c"} {
		if !strings.Contains(config, want) {
			t.Errorf("lacks %q:\n%s", want, config)
		}
	}
	for _, not := range []string{"rotateCertificates", "10.96.0.10"} {
		if strings.Contains(config, not) {
			t.Errorf("has %q:\n%s", not, config)
		}
	}
	unit := j.read(t, kubelet.UnitFile)
	for _, want := range []string{"--hostname-override=gpu-1", "--node-labels=pool=h200", "Wants=network-online.target containerd.service", "StartLimitIntervalSec=0", "Restart=always", "--kubeconfig=/etc/kubernetes/kubelet.conf", "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf"} {
		if !strings.Contains(unit, want) {
			t.Errorf("the unit lacks %q:\n%s", want, unit)
		}
	}
	for _, not := range []string{"Requires=", "--node-ip"} {
		if strings.Contains(unit, not) {
			t.Errorf("the unit has %q:\n%s", not, unit)
		}
	}
}

// A change of the configuration restarts kubelet, once, and its undo does.
func TestChangedConfigRestartsKubelet(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	j.apply(t)
	applied := j.tree()
	pin := "ca_pin = \"" + j.Pin() + "\"\n"
	j.parse(t, pin+"cluster_dns = [\"10.96.0.11\"]\n")
	res := j.apply(t)
	if got := joins.Names(res.Made); !strings.Contains(got, "restart kubelet.service") || !strings.Contains(j.n.Units(), "kubelet.service enabled active fresh") {
		t.Errorf("made %s\n%s", got, j.n.Units())
	}
	if _, err := j.engine().Undo(t.Context(), j.n, "", nil); err != nil {
		t.Fatal(err, joins.Because(err))
	}
	if diff := cmp.Diff(applied, j.tree()); diff != "" {
		t.Errorf("after undo of the change:\n%s", diff)
	}
	j.apply(t)
	if _, err := j.engine().Undo(t.Context(), j.n, "all", nil); err != nil {
		t.Fatal(err, joins.Because(err))
	}
	if u := j.n.Units(); strings.Contains(u, "kubelet.service enabled") {
		t.Errorf("after undo of all kubelet runs: %s", u)
	}
}

// A signature is taken only if it is one of this text by this token, in the one form that Kubernetes makes.
func TestSigns(t *testing.T) {
	token := bootstrapToken{"abcdef", "s3cr3t0123456789"}
	good := kubesim.Sign("text", token.id, token.secret)
	if !signs(good, "text", token) {
		t.Fatal("a good signature is refused")
	}
	for name, bad := range map[string]string{
		"another text":   kubesim.Sign("texts", token.id, token.secret),
		"another secret": kubesim.Sign("text", token.id, "another"),
		"another id":     kubesim.Sign("text", "fedcba", token.secret),
		"attached":       strings.Replace(good, "..", ".dGV4dA.", 1),
		"cut":            good[:len(good)-1],
		"none":           "eyJhbGciOiJub25lIiwia2lkIjoiYWJjZGVmIn0..",
		"empty":          "",
		"dots":           "..",
	} {
		if signs(bad, "text", token) {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzSigns(f *testing.F) {
	token := bootstrapToken{"abcdef", "s3cr3t0123456789"}
	good := kubesim.Sign("text", token.id, token.secret)
	f.Add(good, "text")
	f.Add("..", "")
	f.Add("eyJ..x", "a")
	f.Fuzz(func(t *testing.T, signature, text string) {
		if signs(signature, text, token) && signature != kubesim.Sign(text, token.id, token.secret) {
			t.Errorf("%q is taken for %q", signature, text)
		}
	})
}
