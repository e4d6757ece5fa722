// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

//go:embed testdata/kubeadm-unit.txtar
var kubeadmUnit string

// The machines: how kubelet is set up, and where our part must be found afterwards.
const (
	simKubelet  = "[[unit]]\nname = \"kubelet.service\"\nenabled = \"enabled\"\nactive = \"active\"\n"
	joinedFiles = "-- etc/kubernetes/kubelet.conf --\napiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {user: u, cluster: k}}]\nclusters: [{name: k, cluster: {server: https://k}}]\nusers: [{name: u, user: {token: abc}}]\n" +
		"-- var/lib/kubelet/config.yaml --\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nregisterWithTaints:\n- key: dedicated # theirs\n  effect: NoSchedule\nmaxPods: 110\n-- var/lib/kubelet/kubeadm-flags.env --\nKUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1\"\n"
)

func plainUnit(args string) string {
	return "-- usr/bin/kubelet mode=0755 size=77 --\n-- etc/systemd/system/kubelet.service --\n[Install]\nWantedBy=multi-user.target\n[Service]\nExecStart=/usr/bin/kubelet " + args + "\n"
}

type layout struct {
	files string
	has   map[string][]string // what files must hold after the first spec
	fresh bool                // kubelet is restarted
	keeps string              // a taint of another owner

	taintsOnly bool // labels have no place, and are set by the API
}

func layouts() map[string]layout {
	kubeadm := strings.Replace(kubeadmUnit, "ENVFILE", "/etc/default/kubelet", 1)
	const config = "-- etc/kubernetes/kubelet.yaml --\nkind: KubeletConfiguration\nmaxPods: 12 # few\nregisterWithTaints: [{key: dedicated, effect: NoSchedule}]\n"
	return map[string]layout{
		"kubeadm on Debian": {
			files: simKubelet + kubeadm, fresh: true,
			has: map[string][]string{"/etc/default/kubelet": {"KUBELET_EXTRA_ARGS=\"--node-labels=", "team=red", " --register-with-taints=nvidia.com/gpu=present:NoSchedule\"\n"}},
		},
		"kubeadm on RPM": {
			files: simKubelet + strings.Replace(kubeadmUnit, "ENVFILE", "/etc/sysconfig/kubelet", 1) + "-- etc/sysconfig/kubelet mode=0600 --\nKUBELET_EXTRA_ARGS=\n",
			has:   map[string][]string{"/etc/sysconfig/kubelet": {"KUBELET_EXTRA_ARGS=--node-labels=", "team=red", " --register-with-taints=nvidia.com/gpu=present:NoSchedule\n"}}, fresh: true,
		},
		"kubeadm, joined": {
			files: simKubelet + kubeadm + joinedFiles,
			has:   map[string][]string{"/etc/default/kubelet": {"team=red", "--register-with-taints=dedicated:NoSchedule,nvidia.com/gpu=present:NoSchedule"}},
			keeps: "{dedicated  NoSchedule}",
		},
		"unit with the packages' variable": {
			files: simKubelet + plainUnit("--config=/etc/kubernetes/kubelet.yaml $KUBELET_EXTRA_ARGS") + "EnvironmentFile=-/etc/default/kubelet\n" + config +
				"-- etc/default/kubelet --\nKUBELET_EXTRA_ARGS=\"--v=4 --node-labels=theirs=1\"\n", fresh: true,
			has:   map[string][]string{"/etc/default/kubelet": {"\"--v=4 --node-labels=theirs=1 --node-labels=", "team=red", " --register-with-taints=dedicated:NoSchedule,nvidia.com/gpu=present:NoSchedule"}},
			keeps: "{dedicated  NoSchedule}",
		},
		"folder of configurations": {
			files: simKubelet + plainUnit("--config=/etc/kubernetes/kubelet.yaml --config-dir=/etc/kubernetes/kubelet.d") + config + "-- etc/kubernetes/kubelet.d/ --\n", fresh: true,
			has:   map[string][]string{"/etc/kubernetes/kubelet.d/zz-gpuadm.conf": {"kind: KubeletConfiguration\nregisterWithTaints:\n- {key: \"dedicated\"", "- {key: \"nvidia.com/gpu\""}},
			keeps: "{dedicated  NoSchedule}", taintsOnly: true,
		},
		"K3s": {
			files: "[[unit]]\nname = \"k3s.service\"\nenabled = \"enabled\"\nactive = \"active\"\n-- usr/local/bin/k3s mode=0755 size=72 --\n-- etc/systemd/system/k3s.service --\n[Install]\nWantedBy=multi-user.target\n[Service]\nExecStart=/usr/local/bin/k3s agent\n-- etc/rancher/k3s/config.yaml mode=0600 --\nnode-label:\n- theirs=1\n",
			has:   map[string][]string{"/etc/rancher/k3s/config.yaml.d/zz-gpuadm.yaml": {"node-label+:\n- \"", "- \"team=red\"\n", "node-taint+:\n- \"nvidia.com/gpu=present:NoSchedule\"\n"}}, fresh: true,
		},
		"image": {
			files: "live = false\n" + strings.Replace(simKubelet, `"active"`, `""`, 1) + kubeadm,
			has:   map[string][]string{"/etc/default/kubelet": {"team=red"}},
		},
	}
}

const (
	redSpec  = "[node]\nlabels = { team = \"red\", size = \"big\" }\ntaints = [\"nvidia.com/gpu=present:NoSchedule\"]\nstartup_taint = \"none\"\ngpu_labels = false\n"
	blueSpec = "[node]\nlabels = { team = \"blue\" }\ntaints = [\"readiness.example.com/gpu:NoExecute\"]\nstartup_taint = \"none\"\ngpu_labels = false\n"
)

func kubeletMachine(t testing.TB, files string) *simhost.Node {
	t.Helper()
	n, err := simhost.New([]byte("-- sim.toml --\n" + files + "-- etc/os-release --\nID=debian\n-- etc/hostname --\ngpu-0\n-- etc/default/ --\n"))
	must.OK(t, err)
	return n
}

func kubeletEngine(t testing.TB, text string) *converge.Engine {
	t.Helper()
	s, err := spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n" + text)})
	must.OK(t, err)
	return &converge.Engine{
		Stages:  []converge.Stage{Stage()},
		Spec:    s,
		ThingOf: kubeletThing,
		Version: "test",
	}
}

func kubeletThing(ref converge.Ref) (converge.Thing, error) {
	switch ref.Kind {
	case "file":
		return things.NewFile(ref.Name, kubelet.TakeOut), nil
	case "folder":
		return things.NewFolder(ref.Name), nil
	case "unit-files":
		return things.NewUnitFiles(ref.Name), nil
	case "restart":
		if ref.Form == kubelet.FormUnit {
			return kubelet.NewRestart(ref.Name, ref.Reads), nil
		}
	}
	return nil, fmt.Errorf("no such kind: %s %s", ref.Kind, ref.Name)
}

func kubeletTree(n *simhost.Node) string {
	return n.Tree(converge.Home, "/run", "/proc") + n.Units()
}

func mustApply(t *testing.T, n *simhost.Node, text string) converge.Result {
	t.Helper()
	r, err := kubeletEngine(t, text).Apply(context.Background(), n)
	must.That(t, err == nil, "%v, %+v", err, err)
	return r
}

func restarts(r converge.Result) bool {
	return slices.ContainsFunc(r.Made, func(c converge.Change) bool {
		return c.Kind == "restart"
	})
}

// TestNodeLayouts: each layout gets its labels and taints, once; a changed spec ends as on a fresh
// machine; undo ends in the first tree.
func TestNodeLayouts(t *testing.T) {
	for name, c := range layouts() {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			n := kubeletMachine(t, c.files)
			first := kubeletTree(n)
			p, err := kubeletEngine(t, redSpec).Plan(ctx, n.View())
			must.That(t, err == nil && len(p.Cannot()) == 0, "%v, %+v", err, p.Cannot())
			r := mustApply(t, n, redSpec)
			restarted := restarts(r)
			check.That(t, restarted == c.fresh, "kubelet restarted: %v, made %v", restarted, r.Made)
			for file, parts := range c.has {
				data, err := n.ReadFile(file)
				must.That(t, err == nil, "%v; made %v", err, r.Made)
				for _, part := range parts {
					check.That(t, strings.Contains(string(data), part), "%s lacks %q:\n%s", file, part, data)
				}
			}

			c.registers(t, n, map[string]string{"team": "red", "size": "big"}, "{nvidia.com/gpu present NoSchedule}")
			r = mustApply(t, n, redSpec)
			check.That(t, len(r.Made) == 0, "again: %v", r.Made)
			mustApply(t, n, blueSpec)
			c.registers(t, n, map[string]string{"team": "blue", "size": ""}, "{readiness.example.com/gpu  NoExecute}")
			other := kubeletMachine(t, c.files)
			mustApply(t, other, blueSpec)
			a, b := n.Tree(converge.Home, "/run", "/proc"), other.Tree(converge.Home, "/run", "/proc")
			check.That(t, a == b, "a changed spec ends otherwise:\n%s\nthan on a fresh machine:\n%s", a, b)
			must.Get(kubeletEngine(t, blueSpec).Undo(ctx, n, "all", nil))(t)
			now := n.Tree(converge.Home, "/run", "/proc") + n.Units()
			check.That(t, now == first, "after undo:\n%s\nwas:\n%s", now, first)
		})
	}
}

func (c layout) registers(t *testing.T, n *simhost.Node, labels map[string]string, taint string) {
	t.Helper()
	if c.taintsOnly {
		labels = map[string]string{"team": ""}
	}
	checkRegisters(t, n, labels, taint)
	checkRegisters(t, n, nil, c.keeps)
}

// checkRegisters reads as the facts do what kubelet would register with: what others stated is
// still there.
func checkRegisters(t *testing.T, n *simhost.Node, labels map[string]string, taint string) {
	t.Helper()
	f, err := facts.Gather(context.Background(), n, facts.Needs{})
	must.OK(t, err)
	for k, v := range labels {
		check.That(t, f.Kubelet.Labels[k] == v, "label %s is %q, not %q: %v", k, f.Kubelet.Labels[k], v, f.Kubelet.Labels)
	}
	all := fmt.Sprint(f.Kubelet.Taints)
	check.That(t, strings.Contains(all, taint) && strings.Count(all, "gpu") == 1, "taints are %s, and should have %s and no other of gpuadm's", all, taint)
}

// A kubelet that dies for want of credentials, again and again, reads its files at the next try;
// one that gave up does when it is started.
func TestKubeletThatDies(t *testing.T) {
	ctx := context.Background()
	for active, want := range map[string]converge.State{"active": things.UpToDate, "activating": things.UpToDate, "failed": "inactive", "inactive": "inactive"} {
		files := strings.Replace(layouts()["kubeadm on Debian"].files, `active = "active"`, fmt.Sprintf("active = %q", active), 1)
		n := kubeletMachine(t, files)
		thing := kubelet.NewRestart("kubelet.service", []string{"/etc/default/kubelet"})
		got, err := thing.Look(ctx, n)
		check.That(t, err == nil && got == want, "%s: %q, %v", active, got, err)
		restarted := restarts(mustApply(t, n, redSpec))
		check.That(t, restarted == (active == "active"), "%s: restarted: %v", active, restarted)
		r := mustApply(t, n, redSpec)
		check.That(t, len(r.Made) == 0, "%s, again: %v", active, r.Made)
	}
}

// A file of others that replaces K3s's lists is read before ours.
func TestK3sFilesOfOthers(t *testing.T) {
	n := kubeletMachine(t, layouts()["K3s"].files+"-- etc/rancher/k3s/config.yaml.d/90-site.yaml --\nnode-label: [site=x]\nnode-taint: [dedicated:NoSchedule]\n")
	mustApply(t, n, redSpec)
	checkRegisters(t, n, map[string]string{"team": "red", "site": "x"}, "{nvidia.com/gpu present NoSchedule}")
	r := mustApply(t, n, redSpec)
	check.That(t, len(r.Made) == 0, "again: %v", r.Made)
}

// At boot kubelet waits for us, and will start with the files that are there.
func TestNodeAtBoot(t *testing.T) {
	red := kubeletEngine(t, redSpec).Spec
	env := facts.Place{
		How:  "env",
		File: "/etc/default/kubelet",
		Var:  "KUBELET_EXTRA_ARGS",
	}
	for _, f := range []facts.Facts{
		{Booting: true, Kubelet: facts.Kubelet{Unit: "kubelet.service", LabelsAt: env, TaintsAt: env}},
		{Kubelet: facts.Kubelet{Unit: "kubelet.service", LabelsAt: env, TaintsAt: env, Joined: true}},
	} {
		wants, err := Stage().Wants(red, f)
		must.That(t, err == nil && len(wants) > 0, "%d wants, %v", len(wants), err)
		for _, w := range wants {
			check.That(t, w.Ref().Kind != "restart", "wants %s %s", w.Ref().Kind, w.Ref().Name)
		}
		why := wants[len(wants)-1].Why
		check.That(t, strings.Contains(why, "joined already") == f.Kubelet.Joined, "%q", why)
	}
}

// Another process's edits stay when ours are undone, and no file but the administrator's was
// touched.
func TestNodeUndoneAroundOthers(t *testing.T) {
	ctx := context.Background()
	c := layouts()["kubeadm, joined"]
	n := kubeletMachine(t, c.files)
	mustApply(t, n, redSpec)
	for file, change := range map[string][2]string{
		"/etc/default/kubelet":         {"--node-labels=", "--v=9 --node-labels=more=1 --node-labels="},
		"/var/lib/kubelet/config.yaml": {"maxPods: 110", "- key: added\n  effect: NoExecute\nmaxPods: 99"},
	} {
		data, err := n.ReadFile(file)
		must.OK(t, err)
		must.OK(t, n.WriteFile(file, []byte(strings.Replace(string(data), change[0], change[1], 1)), host.Attr{Mode: 0o644}))
	}

	mustApply(t, n, redSpec) // the union has their new taint
	checkRegisters(t, n, map[string]string{"team": "red", "more": "1"}, "{added  NoExecute}")
	must.Get(kubeletEngine(t, redSpec).Undo(ctx, n, "all", nil))(t)
	env, _ := n.ReadFile("/etc/default/kubelet")
	conf, _ := n.ReadFile("/var/lib/kubelet/config.yaml")
	check.That(t, string(env) == "KUBELET_EXTRA_ARGS=\"--v=9 --node-labels=more=1\"\n", "%q", env)
	want := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nregisterWithTaints:\n- key: dedicated # theirs\n  effect: NoSchedule\n- key: added\n  effect: NoExecute\nmaxPods: 99\n"
	check.That(t, string(conf) == want, "%q\nwant %q", conf, want)
}

// A power cut before any touch, then apply again, ends in the same tree.
func TestNodePowerCuts(t *testing.T) {
	c := layouts()["unit with the packages' variable"]
	whole := kubeletMachine(t, c.files)
	mustApply(t, whole, redSpec)
	want := whole.Tree(converge.Home, "/run", "/proc")
	for cut := range whole.Touches() {
		n := kubeletMachine(t, c.files)
		n.CutAt(cut)
		if _, err := kubeletEngine(t, redSpec).Apply(context.Background(), n); err == nil {
			continue
		}
		n.Boot(simhost.LoseAll)
		mustApply(t, n, redSpec)
		now := n.Tree(converge.Home, "/run", "/proc")
		must.That(t, now == want, "cut at touch %d:\n%s\nwant:\n%s", cut, now, want)
	}
}

// A kubelet that has no place for taints is refused, and the reason says what to do; nothing of
// another owner is repeated or edited.
func TestNoPlaceForTaints(t *testing.T) {
	const config = " --config=/etc/kubernetes/kubelet.yaml"
	for name, files := range map[string]string{
		"plain unit":           plainUnit(config),
		"variable of the unit": plainUnit("$KUBELET_EXTRA_ARGS") + "EnvironmentFile=-/etc/default/kubelet\nEnvironment=\"KUBELET_EXTRA_ARGS=--v=4\"\n",
		"flag over the folder": plainUnit("--register-with-taints=a:NoSchedule --config-dir=/k.d"),
	} {
		n := kubeletMachine(t, simKubelet+files)
		first := kubeletTree(n)
		_, err := kubeletEngine(t, redSpec).Apply(context.Background(), n)
		faulted(t, name, err, noPlaceForTaint)
		check.Equal(t, kubeletTree(n), first, "%s:", name)
	}
}

func TestNodeWantsNothing(t *testing.T) {
	red, err := spec.Parse(spec.File{
		Name: "node.toml",
		Data: []byte("format = 1\n" + redSpec),
	})
	must.OK(t, err)
	bare, _ := spec.Parse(spec.File{Name: "node.toml", Data: []byte("format = 1\n")})
	env := facts.Place{
		How:  "env",
		File: "/etc/default/kubelet",
		Var:  "KUBELET_EXTRA_ARGS",
	}
	for name, c := range map[string]struct {
		spec spec.Spec
		k    facts.Kubelet
		note string
	}{
		"no section": {bare, facts.Kubelet{Unit: "kubelet.service", LabelsAt: env, TaintsAt: env}, ""},
		"no kubelet": {red, facts.Kubelet{}, "no kubelet"},
		"nodeadm":    {red, facts.Kubelet{Unit: "kubelet.service", ConfigOwner: "nodeadm", LabelsAt: env}, "nodeadm"},
		"AKS":        {red, facts.Kubelet{Unit: "kubelet.service", ConfigOwner: "aks", LabelsAt: env}, "aks"},
		"GKE":        {red, facts.Kubelet{Unit: "kubelet.service", ConfigOwner: "gke", LabelsAt: env}, "gke"},
		"nowhere, joined": {
			red,
			facts.Kubelet{Unit: "kubelet.service", Joined: true, LabelsAt: facts.Place{Why: "a wrapper"}, TaintsAt: facts.Place{Why: "a wrapper"}},
			"a wrapper",
		},
	} {
		f := facts.Facts{Kubelet: c.k}
		wants, err := Stage().Wants(c.spec, f)
		notes := strings.Join(Stage().Notes(nil, c.spec, f), "; ")
		check.That(t, err == nil && len(wants) == 0 && strings.Contains(notes, c.note) && (c.note != "" || notes == ""), "%s: %d wants, notes %q, %v", name, len(wants), notes, err)
	}

	for version, taken := range map[string]bool{"1.29.4": false, "v1.30.0": true, "1.34.1": true, "": true} {
		_, err := Stage().Wants(red, facts.Facts{Kubelet: facts.Kubelet{
			Unit:    "kubelet.service",
			Version: version,
			TaintsAt: facts.Place{
				How:  "drop-in",
				File: "/k.d",
				Key:  "registerWithTaints",
			},
		}})
		if taken {
			check.OK(t, err)
			continue
		}
		faulted(t, "kubelet "+version, err, noPlaceForTaint)
	}

	_, err = Stage().Wants(red, facts.Facts{Kubelet: facts.Kubelet{
		Unit:     "kubelet.service",
		LabelsAt: env,
		TaintsAt: facts.Place{Why: "a wrapper"},
	}})
	faulted(t, "kubelet in a wrapper", err, noPlaceForTaint)
}

func TestRegistrationRefuses(t *testing.T) {
	s := spec.Spec{Node: spec.Node{Labels: map[string]string{"node-role.kubernetes.io/gpu": "x", "team": "red", "feature.node.kubernetes.io/a": "b"}}}
	labels, _, err := Registration(s, facts.Facts{})
	check.That(t, err == nil && labels["team"] == "red" && labels["feature.node.kubernetes.io/a"] == "b" && labels["node-role.kubernetes.io/gpu"] == "", "%v, %v", labels, err)
	twice := spec.Node{Taints: []spec.Taint{{
		Key:    "a",
		Effect: "NoSchedule",
	}, {Key: "a", Value: "b", Effect: "NoSchedule"}}}
	_, _, err = Registration(spec.Spec{Node: twice}, facts.Facts{})
	faulted(t, "two taints of a key and an effect", err, taintTwice)
}
