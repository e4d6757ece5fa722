// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/images/daemonset"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/lab/kube"
)

// ownGroup is whom images/daemonset/aks-own-machine.yaml lets ask for a certificate.
const ownGroup = "system:bootstrappers:gpuadm"

// azureMachine is a machine of Azure. What its owner wrote into its custom data is nobody's business.
func azureMachine(n gpuHost) cloudfake.Machine {
	return cloudfake.Machine{
		ID: "5f2b7a0e-0000-4000-8000-000000000001", Type: "Standard_NC80adis_H100_v5", Region: "eastus", Zone: "1", Name: n.Name,
		Account: "00000000-0000-4000-8000-00000000000a", PrivateIP: n.IP, MAC: "00:0d:3a:00:00:01", UserData: customData,
		Attributes: map[string]string{"resource-group": "gpus"},
	}
}

// customData is a word of user data, custom data and attributes, which may be nowhere but where the cloud tells it.
const customData = "planted-in-user-data-0c1f"

// TestLabKubeAKSOwn: a machine of one's own joins as AKS's rules let it, by a token that may do what
// images/daemonset/aks-own-machine.yaml says and no more; it is told that Microsoft does not support it; the startup taint
// goes once the GPUs stand; and undo makes of it the machine that it was.
func TestLabKubeAKSOwn(t *testing.T) {
	t.Parallel()
	c := cluster.Run(t)
	n := bootGPU(t, c, "aks-own", "trixie")
	n.Cloud(kube.Cloud{Setup: cloudfake.Setup{Cloud: "azure", Machine: azureMachine(n)}})
	n.Devices(2 * count)
	n.account()
	n.wants(partitioned)
	before := n.tree()
	n.refusals()

	secret := n.ownJoin()
	const log = "/run/argv"
	plan := n.gpuadm(0, []string{"plan"}, "not supported by Microsoft", "aks-own-machine.yaml", "kubernetes.azure.com/managed=false")
	if diff := before.Diff(n.tree()); diff != "" {
		t.Errorf("a plan touched\n%s", diff)
	}
	r := n.Exec("strace", "-f", "-e", "trace=execve", "-s", "10000", "-v", "-o", log, "gpuadm", "apply")
	if r.Exit != 0 && r.Exit != 75 {
		t.Fatalf("apply: %s", r)
	}
	for what, text := range map[string]string{"the plan": plan.String(), "a command line": n.Get(log), "the output": r.String(), "the facts": n.Must("gpuadm", "facts", "-o", "json")} {
		if strings.Contains(text, secret[7:]) || strings.Contains(text, customData) {
			t.Errorf("a secret is in %s", what)
		}
	}
	n.settled()
	n.Ready()
	n.condition("True")
	o := n.Object()
	for key, want := range map[string]string{
		"kubernetes.azure.com/managed": "false", "node.kubernetes.io/exclude-from-external-load-balancers": "true",
		"kubernetes.azure.com/accelerator": "nvidia", "accelerator": "nvidia",
	} {
		if is := kube.Text(o, "metadata", "labels", key); is != want {
			t.Errorf("label %s is %q, want %q", key, is, want)
		}
	}
	n.joined()
	if asked := c.Requests(accountUser); !slices.Contains(asked, "patch /api/v1/nodes/"+n.Name) {
		t.Errorf("the startup taint was never there to be taken off: %v", asked)
	}
	n.secrets(secret)
	n.tells("GET /metadata/instance?api-version=2021-02-01: 200")
	n.unsaid(customData)
	n.idle()
	n.tells()
	n.leaves(before)
}

// ownJoin writes a [join] of an own machine into the spec, with a token of its group, which it returns.
func (n gpuHost) ownJoin() string {
	n.t.Helper()
	objects, err := kube.Documents(daemonset.AKSOwnMachine)
	if err != nil {
		n.t.Fatal(err)
	}
	n.c.Apply(objects...)
	token, err := n.c.GroupToken(n.t.Context(), time.Hour, ownGroup)
	if err != nil {
		n.t.Fatal(err)
	}
	const ca = "/etc/gpuadm/ca.crt"
	n.Put(tokenFile, token+"\n", 0o600)
	n.Put(ca, string(n.c.CA()), 0o644)
	join := fmt.Sprintf("[join]\nhow = \"aks\"\nown_machine = true\nserver = %q\nca_file = %q\ntoken_file = %q\nkubelet_config = %q\n", kube.Server, ca, tokenFile, configFile)
	n.wants(ownSpec, join)
	// AKS has none of kubeadm's notes, so the DNS's address has to be written.
	n.gpuadm(1, []string{"plan"}, "address of the cluster's DNS", "cluster_dns")
	n.wants(ownSpec, join+"cluster_dns = [\"10.96.0.10\"]\n")
	return token
}

const ownSpec = partitioned + "kubeconfig = \"" + accountFile + "\"\n"

// refusals are what AKS and GKE say to a machine that is in no pool of theirs.
func (n gpuHost) refusals() {
	n.t.Helper()
	n.wants("[join]\nhow = \"aks\"\n")
	n.gpuadm(1, []string{"apply"}, "cannot join AKS: this machine is in none of its node pools", "own_machine = true", "not supported by Microsoft")
	n.wants("[join]\nhow = \"gke\"\n")
	n.gpuadm(1, []string{"apply"}, "cannot join GKE: it takes no machines but those of its own node pools, and this is none of them", "gpu-driver-version=disabled")
}

// tells wants the metadata service to have been asked for these since the last call, each once or more, and for nothing else.
func (n gpuHost) tells(requests ...string) {
	n.t.Helper()
	if asked := slices.Compact(slices.Sorted(slices.Values(n.since()))); !slices.Equal(asked, requests) {
		n.t.Errorf("the metadata service was asked for %q, want %q", asked, requests)
	}
}

// unsaid wants a word in no file but these, nor in what anybody said.
func (n gpuHost) unsaid(word string, but ...string) {
	n.t.Helper()
	r := n.Exec("grep", "-rlFs", "--devices=skip", "-e", word, "/etc", "/var", "/run", "/tmp", "/root", "/usr/local")
	for name := range strings.Lines(r.Stdout) {
		if name = strings.TrimSpace(name); !slices.Contains(but, name) {
			n.t.Errorf("%s is in %s", word, name)
		}
	}
	if r := n.Exec("sh", "-c", `journalctl --no-pager | grep -F -e "$1"`, "sh", word); r.Exit == 0 {
		n.t.Errorf("%s is in the journal: %s", word, r.Stdout)
	}
}
