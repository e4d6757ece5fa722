// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// refusedJoin applies, and wants a refusal that touched nothing and tells these words.
func refusedJoin(t *testing.T, j *testJoin, words ...string) {
	t.Helper()
	before := j.n.Touches()
	if p, err := j.engine().Plan(t.Context(), j.n.View()); err != nil || len(p.Cannot()) == 0 {
		t.Fatalf("planned, %v; wanted a refusal with %q", err, words)
	}
	_, err := j.engine().Apply(t.Context(), j.n)
	text := err.Error() + "\n" + joins.Because(err)
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("lacks %q:\n%s", w, text)
		}
	}
	if n := j.n.Touches() - before; n > 0 {
		t.Errorf("refused after %d touches: %s", n, text)
	}
}

// A flag of the administrator's that contradicts the join would win over our files, or be lost: either way without a word.
func TestFlagsThatContradictTheJoin(t *testing.T) {
	for flag, word := range map[string]string{
		"--hostname-override=gpu-7":                    `node_name = "gpu-7"`,
		"--register-with-taints=a=b:NoSchedule":        "taints in [node]",
		"--bootstrap-kubeconfig=/etc/kubernetes/other": "--bootstrap-kubeconfig",
		"--kubeconfig=/etc/kubernetes/other":           "--kubeconfig",
		"--config=/etc/kubernetes/other.yaml":          "kubelet_config",
	} {
		j := startJoin(t, joins.Machine+tokenKubeadmUnit+"-- etc/default/kubelet --\nKUBELET_EXTRA_ARGS=\"--v=4 "+flag+"\"\n", "[node]\ngpu_labels = false\ntaints = [\"c=d:NoSchedule\"]\n")
		refusedJoin(t, j, strings.SplitN(flag, "=", 2)[0], "/etc/default/kubelet", word)
	}
	j := startJoin(t, joins.Machine+tokenKubeadmUnit+"-- etc/default/kubelet --\nKUBELET_EXTRA_ARGS=\"--v=4 --hostname-override=gpu-1 --node-labels=a=b\"\n", "")
	j.apply(t)
}

// A kubelet that runs as somebody's node stays that, wherever its kubeconfig lies.
func TestNodeOfOthersStays(t *testing.T) {
	unit := "-- etc/systemd/system/kubelet.service --\n[Service]\nExecStart=/usr/bin/kubelet --kubeconfig=/var/lib/kubelet/kubeconfig\n[Install]\nWantedBy=multi-user.target\n" +
		"-- var/lib/kubelet/kubeconfig mode=0600 --\napiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {user: u}}]\nusers: [{name: u, user: {token: t}}]\n"
	for name, archive := range map[string]string{"elsewhere": joins.Machine + unit} {
		j := startJoin(t, archive, "")
		p, err := j.engine().Plan(context.Background(), j.n.View())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Changes {
			if c.Stage == "join" {
				t.Errorf("%s: would make %s", name, c)
			}
		}
	}
}

// The name is a label's value as well (kubernetes.io/hostname), which has at most 63 characters: the API server would refuse the Node.
func TestNameIsALabelToo(t *testing.T) {
	long := strings.Repeat("a", 64)
	j := startJoin(t, strings.ReplaceAll(joins.Machine, "\ngpu-1\n", "\n"+long+"\n"), "")
	refusedJoin(t, j, "64 characters", "node_name")
}

// An image has no name yet; the machine that boots from it has.
func TestImageWithoutAName(t *testing.T) {
	for _, name := range []string{"", "localhost", "localhost.localdomain"} {
		archive := strings.Replace(strings.ReplaceAll(joins.Machine, "\ngpu-1\n", "\n"+name+"\n"), "now = ", "live = false\nnow = ", 1)
		j := startJoin(t, archive, "")
		p, err := j.engine().Plan(t.Context(), j.n.View())
		if err != nil || len(p.Cannot()) > 0 {
			t.Errorf("%q: %v %+v", name, err, p.Cannot())
		}
	}
}

// Kubelet knows no domain of its own: without one pods would find no service by its short name.
func TestClusterDomain(t *testing.T) {
	j := startJoin(t, joins.Machine, "cluster_dns = [\"10.96.0.10\"]\n")
	j.apply(t)
	if c := j.read(t, kubelet.ConfigFile); !strings.Contains(c, "clusterDomain: cluster.local\n") {
		t.Errorf("no domain:\n%s", c)
	}
}

// While a cluster changes its CA, both are published.
func TestAnotherCABesideThePinned(t *testing.T) {
	other := kubesim.New(kubesim.Node("gpu-1")).Joinable(testServer, time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC))
	j := startJoin(t, joins.Machine, "")
	j.apply(t)
	// The administrator has put the next CA beside it on all nodes. It is still the cluster's.
	if err := j.n.WriteFile(kubelet.ClusterCA, append(other.CA(), j.CA()...), host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if res := j.apply(t); len(res.Made) > 0 {
		t.Errorf("made %s", joins.Names(res.Made))
	}
	if err := j.n.WriteFile(kubelet.ClusterCA, other.CA(), host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	refusedJoin(t, j, "another cluster's CA lies there")
}

// A new ca_file with the old CA in it is the same cluster's.
func TestNextCAByFile(t *testing.T) {
	other := kubesim.New(kubesim.Node("gpu-1")).Joinable(testServer, time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC))
	j := startJoin(t, joins.Machine, "ca_file = \"/etc/gpuadm/ca.crt\"\n")
	put := func(data []byte) {
		t.Helper()
		if err := j.n.WriteFile("/etc/gpuadm/ca.crt", data, host.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	put(j.CA())
	j.apply(t)
	both := append(j.CA(), other.CA()...)
	put(both)
	j.apply(t)
	if j.read(t, kubelet.ClusterCA) != string(both) {
		t.Error("the next CA was not taken over")
	}
	put(other.CA())
	j.apply(t) // the old one goes
	if j.read(t, kubelet.ClusterCA) != string(other.CA()) {
		t.Error("the old CA is still there")
	}
}

// kubelet_config is merged into the file that is written. It cannot be that file: nothing would ever leave it.
func TestKubeletConfigIsNotItself(t *testing.T) {
	j := startJoin(t, joins.Machine+"-- var/lib/kubelet/config.yaml --\nkind: KubeletConfiguration\nmaxPods: 9\n", "kubelet_config = \"/var/lib/kubelet/config.yaml\"\n")
	refusedJoin(t, j, kubelet.ConfigFile, "another file")
}

// Undo names the Node that is left, though it was there before we looked, and after gpuadm renewed the certificate.
func TestUndoOfARejoin(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	j.gets.Store(9) // the Node is there at each look: kubelet is quick, or the machine was reinstalled
	j.apply(t)
	var told []string
	e := j.engine()
	e.Tell = func(ev converge.Event) { told = append(told, ev.Text) }
	p, err := e.PlanUndo(t.Context(), j.n.View(), "all", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Kept) == 0 || !strings.Contains(p.Kept[len(p.Kept)-1].Keeps+p.Kept[0].Keeps, "kubectl delete node gpu-1") {
		t.Errorf("the plan of the undo keeps %+v", p.Kept)
	}
	if _, err := e.Undo(t.Context(), j.n, "all", nil); err != nil {
		t.Fatal(err, joins.Because(err))
	}
	if all := strings.Join(told, "\n"); strings.Count(all, "kubectl delete node gpu-1") != 1 {
		t.Errorf("undo does not say once what is left:\n%s", all)
	}
}

// An undo of all takes a certificate away that was renewed meanwhile.
func TestUndoAfterRenewal(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	first := j.tree()
	j.apply(t)
	j.n.Advance(2 * 365 * 24 * time.Hour)
	j.boot(simhost.LoseNothing)
	if err := j.n.WriteFile("/etc/gpuadm/token", []byte(testToken), host.Attr{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	j.Signer.Now = j.n.Now()
	j.apply(t)
	if _, err := j.engine().Undo(t.Context(), j.n, "all", nil); err != nil {
		t.Fatal(err, joins.Because(err))
	}
	if now := j.tree(); now != first {
		t.Errorf("after undo:\n%s", now)
	}
}

// With two engines kubelet uses the one that [runtime] prepares.
func TestEngineAsInRuntime(t *testing.T) {
	f := facts.Facts{Engines: []facts.Engine{{Name: "crio"}, {Name: "containerd"}}}
	if e, err := kubelet.EngineOf(f); err != nil || e.Name != "containerd" {
		t.Errorf("%+v %v", e, err)
	}
}

// A join whose kubeconfig kubectl has edited stays gpuadm's.
func TestKubeconfigEditedByKubectl(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	j.apply(t)
	text := strings.Replace(strings.TrimPrefix(j.read(t, kubelet.Kubeconfig), kubelet.Written), "api.example:6443", "vip.example:6443", 1)
	if err := j.n.WriteFile(kubelet.Kubeconfig, []byte(text), host.Attr{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	p, err := j.engine().Plan(t.Context(), j.n.View())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range p.Changes {
		if c.Name == kubelet.CurrentCertificate || c.Name == kubelet.Unit {
			t.Errorf("the node would leave: %s %s", c, c.Why)
		}
	}
}

// A certificate that has run out is the join's to fix: the stages around it wait for that, and do not refuse the apply.
func TestReadyWaitsForTheRenewal(t *testing.T) {
	j := startJoin(t, joins.Machine, "")
	j.apply(t)
	j.n.Advance(2 * 365 * 24 * time.Hour)
	j.Signer.Now = j.n.Now()
	if err := j.n.WriteFile("/etc/gpuadm/token", []byte(testToken), host.Attr{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	j.parse(t, "ca_pin = \""+j.Pin()+"\"\n[node]\ngpu_labels = false\nlabels = { \"example.com/pool\" = \"h200\" }\n")
	se := new(node.Session)
	e := j.engine()
	e.Stages = []converge.Stage{node.NewGuard(se), j.stage(new(node.Session)), joinedStage(se), node.NewReady(se, nil)}
	p, err := e.Plan(t.Context(), j.n.View())
	if err != nil || len(p.Cannot()) > 0 {
		t.Fatalf("%v %+v", err, p.Cannot())
	}
	if !strings.Contains(joins.Names(p.Changes), "node label example.com/pool once its certificate is valid again") {
		t.Errorf("planned:\n%s", joins.Names(p.Changes))
	}
}
