// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestAKSMends: where the cluster is AKS's there is no kubeadm, nor a control plane to be on: what to do about a token is what the
// manifest says that lets its group in, and no more is to be allowed than that.
func TestAKSMends(t *testing.T) {
	for name, spoil := range map[string]func(*testJoin){
		"no token": func(j *testJoin) { eksMust(t, j.n.Remove("/etc/gpuadm/token")) },
		"open token": func(j *testJoin) {
			eksMust(t, j.n.WriteFile("/etc/gpuadm/token", []byte(testToken), host.Attr{Mode: 0o644}))
		},
		"no form": func(j *testJoin) { eksMust(t, j.n.WriteFile("/etc/gpuadm/token", []byte("x"), host.Attr{Mode: 0o600})) },
		"unknown": func(j *testJoin) { j.Revoke(testToken) },
		"no bootstrapper": func(j *testJoin) {
			j.Token(testToken, kubesim.User{Name: "bob", Groups: []string{"people"}})
		},
		"may not ask": func(j *testJoin) {
			j.Token(testToken, kubesim.User{Name: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"}})
		},
	} {
		j := startJoin(t, testMachine, "")
		eksMust(t, j.n.WriteFile("/etc/gpuadm/ca.crt", j.CA(), host.Attr{Mode: 0o644}))
		j.spec = joinSpec(t, "[join]\nhow = \"aks\"\nown_machine = true\nserver = \""+testServer+"\"\ntoken_file = \"/etc/gpuadm/token\"\nca_file = \"/etc/gpuadm/ca.crt\"\n")
		spoil(j)
		err := j.joiner(t).try(context.Background(), j.n.View())
		said := joinBecause(err)
		if err == nil || !strings.Contains(said, "aks-own-machine.yaml") || strings.Contains(said, "kubeadm") || strings.Contains(said, "clusterrolebinding") {
			t.Errorf("%s: %v\n%s", name, err, said)
		}
	}
	j := &tokenJoin{name: "gpu-1", aks: true}
	if said := joinBecause(j.notApproved("csr")); !strings.Contains(said, "aks-own-machine.yaml") || !strings.Contains(said, "kubectl certificate approve csr") {
		t.Error(said)
	}
}
