// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/images/systemd"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/specs"
)

func cloudEngine(s spec.Spec) *converge.Engine {
	return &converge.Engine{Stages: []converge.Stage{Join(new(node.Session))}, Spec: s, ThingOf: func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "unit-files" {
			return things.NewUnitFiles(ref.Name), nil
		}
		return testThing(ref)
	}, Version: "test"}
}

// TestNodeadm tells nodeadm labels, the union of the taints, and has it wait; twice, and back.
func TestNodeadm(t *testing.T) {
	text := "[join]\nmethod = \"auto\"\n[node]\ngpu_labels = false\nlabels = { \"example.com/team\" = \"a\" }\ntaints = [\"nvidia.com/gpu=present:NoSchedule\"]\n"
	nodeadm := platform.Of("eks").Join
	n := joins.Recorded(t, "al2023-eks-nvidia", map[string]string{nodeadm.Resolved: joins.Resolved, node.BootUnit: string(systemd.Service)})
	first := n.Tree(converge.Home, "/run", "/proc")
	e := cloudEngine(specs.Of(t, text))
	apply := func() converge.Result {
		t.Helper()
		res, err := e.Apply(t.Context(), n)
		must.That(t, err == nil, "%v\n%s", err, joins.Because(err))
		return res
	}

	apply()
	read := func(name string) string {
		t.Helper()
		data, err := n.ReadFile(name)
		must.OK(t, err)
		return string(data)
	}

	told := read(nodeadm.Settings)
	var doc struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Spec       struct {
			Kubelet struct {
				Flags  []string
				Config struct {
					Taints []struct{ Key, Value, Effect string } `yaml:"registerWithTaints"`
				}
			}
			Containerd any
		}
	}
	must.OK(t, yaml.Unmarshal([]byte(told), &doc))
	check.That(t, doc.APIVersion == "node.eks.aws/v1alpha1" && doc.Kind == "NodeConfig" && doc.Spec.Containerd == nil, "%+v", doc)
	check.That(t, cmp.Equal([]string{"--node-labels=example.com/team=a,k8s.amazonaws.com/accelerator=nvidia-h100"}, doc.Spec.Kubelet.Flags), "flags %v", doc.Spec.Kubelet.Flags)
	check.Equal(t, fmt.Sprint(doc.Spec.Kubelet.Config.Taints), "[{karpenter.sh/unregistered  NoExecute} {nvidia.com/gpu present NoSchedule}]", "taints")
	check.Has(t, read(node.GateOf(nodeadm.Unit)), "ExecStartPre=/usr/local/sbin/gpuadm gate --wait\n", "nodeadm-run does not ask the gate:")
	for _, owned := range []string{"/etc/containerd/config.toml", "/etc/kubernetes/kubelet/config.json", "/etc/eks/kubelet/environment"} {
		check.That(t, !strings.Contains(first, owned) || strings.Contains(n.Tree(), owned), "%s is gone", owned)
	}
	touched := n.Touches()
	res := apply()
	check.That(t, len(res.Made) == 0 && n.Touches() == touched, "a second apply made %v", res.Made)
	// nodeadm-run merges ours into what it notes. A taint that node.toml drops goes all the same,
	// and the user data's stays.
	merged := strings.Replace(joins.Resolved, `"effect":"NoExecute"}]`, `"effect":"NoExecute"},{"key":"nvidia.com/gpu","value":"present","effect":"NoSchedule"},{"key":"example.com/own","effect":"NoSchedule"}]`, 1)
	must.OK(t, n.WriteFile(nodeadm.Resolved, []byte(merged), host.Attr{Mode: 0o644}))
	e.Spec = specs.Of(t, strings.Replace(text, "nvidia.com/gpu", "example.com/other", 1))
	apply()
	if told := read(nodeadm.Settings); strings.Contains(told, "nvidia.com/gpu") || !strings.Contains(told, "example.com/own") || !strings.Contains(told, "karpenter.sh/unregistered") || !strings.Contains(told, "example.com/other") {
		t.Errorf("taints:\n%s", told)
	}
	_, err := e.Undo(t.Context(), n, "all", nil)
	must.That(t, err == nil, "%v", err)
	check.None(t, cmp.Diff(first, n.Tree(converge.Home, "/run", "/proc")), "undo (-before +after)")
	v := n.Violations()
	check.That(t, len(v) == 0, "%v", v)
}

// TestNodeadmPowerCuts heals from a cut at any touch.
func TestNodeadmPowerCuts(t *testing.T) {
	s := specs.Of(t, "[join]\nmethod = \"eks\"\n[node]\nlabels = { \"example.com/team\" = \"a\" }\n")
	files := map[string]string{node.BootUnit: string(systemd.Service)}
	whole := joins.Recorded(t, "al2023-eks-nvidia", files)
	from := whole.Touches()
	_, err := cloudEngine(s).Apply(t.Context(), whole)
	must.That(t, err == nil, "%v", err)
	want := whole.Tree(converge.Home, "/run", "/proc")
	for cut := range whole.Touches() - from {
		n := joins.Recorded(t, "al2023-eks-nvidia", files)
		n.CutAt(n.Touches() + cut)
		_, err := cloudEngine(s).Apply(context.Background(), n)
		must.That(t, err != nil && n.Off(), "touch %d was not cut: %v", cut, err)
		n.Boot(simhost.LoseAll)
		_, err = cloudEngine(s).Apply(context.Background(), n)
		must.That(t, err == nil, "touch %d: %v", cut, err)
		d := cmp.Diff(want, n.Tree(converge.Home, "/run", "/proc"))
		must.That(t, d == "", "touch %d (-whole +healed)\n%s", cut, d)
	}
}

// TestClouds says for recorded machines what is wanted, and who is named as the owner of what.
func TestClouds(t *testing.T) {
	cos := map[string]string{"/usr/lib/os-release": "ID=cos\nVERSION_ID=121\n", "/etc/os-release": "ID=cos\nVERSION_ID=121\n"}
	for name, c := range map[string]struct {
		host, join string
		files      map[string]string
		wants      string // kinds
		notes      []string
		err        []string
	}{
		"AKS pool":         {host: "aks-ubuntu2204", join: `method = "auto"`, wants: "check", notes: []string{"leaves those alone", "--gpu-driver none", "SkipGpuDriverInstall=true"}},
		"no AKS pool":      {host: "ubuntu24-h100", join: `method = "aks"`, err: []string{"in none of its node pools", "az aks nodepool add"}},
		"GKE pool":         {host: "gke-ubuntu", join: `method = "auto"`, notes: []string{"every stage but that", "gpu-driver-version=disabled", "gke-accelerator"}},
		"GKE pool, COS":    {host: "gke-ubuntu", join: `method = "gke"`, files: cos, notes: []string{"verifies and labels"}},
		"no GKE":           {host: "ubuntu24-h100", join: `method = "gke"`, err: []string{"none of them", "DaemonSet", "customNodeInit", "kubeadm join"}},
		"no EKS":           {host: "ubuntu24-h100", join: "method = \"eks\"\ncluster = \"c\"", err: []string{"not in EC2", "hybrid"}},
		"nothing":          {host: "ubuntu24-h100", join: `method = "auto"`, err: []string{"looked for", "kubeadm join"}},
		"EKS with nodeadm": {host: "al2023-eks-nvidia", join: `method = "auto"`, wants: "folder folder folder file", notes: []string{"nodeadm joins this machine", "gpuadm apply --install"}},
		"EKS, hybrid": {
			host: "ubuntu24-h100", join: "method = \"auto\"\nregion = \"us-west-2\"\ncluster = \"c\"", files: map[string]string{"/opt/nodeadm/tracker": "x"},
			notes: []string{"nodeadm of EKS Hybrid Nodes joins", "without effect here: cluster, region in [join]: nodeadm joins this machine"},
		},
		"AKS Flex":            {host: "ubuntu24-h100", join: `method = "auto"`, files: map[string]string{"/etc/aks-flex-node/config.json": "{}"}, notes: []string{"AKS Flex Node joins"}},
		"EKS, but not joined": {host: "al2023-eks-nvidia", join: `method = "none"`},
	} {
		t.Run(name, func(t *testing.T) {
			n := joins.Recorded(t, c.host, c.files)
			s := specs.Of(t, "[join]\n"+c.join+"\n[node]\ngpu_labels = false\n")
			f, err := facts.Gather(t.Context(), n, Join(new(node.Session)).Needs(s))
			must.OK(t, err)
			wants, err := Join(new(node.Session)).Wants(s, f)
			said := fmt.Sprint(err) + joins.Because(err)
			check.Says(t, said, c.err...)
			must.That(t, (err != nil) == (len(c.err) > 0), "%v", said)
			var kinds []string
			for _, w := range wants {
				kinds = append(kinds, w.Ref().Kind)
			}
			check.Equal(t, strings.Join(kinds, " "), c.wants, "wants")
			notes := strings.Join(Join(new(node.Session)).Notes(n.View(), s, f), "\n")
			check.Says(t, notes, c.notes...)
		})
	}
}

// TestPoolWaits does not wait within a run where the cloud's own scripts have not joined the
// machine yet: they may be waiting for us, or come in an hour.
func TestPoolWaits(t *testing.T) {
	for name, how := range map[string]string{"aks-ubuntu2204": "aks", "gke-ubuntu": "gke", "al2023-eks-nvidia": "eks"} {
		n := joins.Recorded(t, name, nil)
		s := specs.Of(t, "[join]\nmethod = \""+how+"\"\n")
		f, err := facts.Gather(t.Context(), n, facts.Needs{})
		must.OK(t, err)
		f.Kubelet.Joined = false
		wants, err := Joined(new(node.Session)).Wants(s, f)
		if err != nil || len(wants) != 1 {
			t.Fatal(name, wants, err)
		}
		if _, err := wants[0].Look(t.Context(), n.View()); !trouble.Passes(err) || !strings.Contains(err.Error(), "to join this machine") {
			t.Errorf("%s: %v", name, err)
		} else if w := (trouble.Wait{}); !errors.As(err, &w) || strings.Contains(fmt.Sprint(w.Try), "nodeadm-config") != (how == "eks") {
			t.Errorf("%s: try %q", name, w.Try)
		}

		f.Booting = true
		if wants, err = Joined(new(node.Session)).Wants(s, f); err != nil {
			t.Fatal(name, err)
		}
		var later host.Later
		_, err = wants[0].Look(t.Context(), n.View())
		check.That(t, errors.As(err, &later), "%s, at a boot: %v", name, err)
	}
}

// TestLogOfKubeletsUnit: the log of a kubelet that has not joined is that of its own unit.
func TestLogOfKubeletsUnit(t *testing.T) {
	const unit = "snap.kubelet-eks.daemon.service"
	n := joins.Recorded(t, "ubuntu24-h100", nil)
	f := facts.Facts{Kubelet: facts.Kubelet{Unit: unit}}
	f.Cloud.Managed = "eks-ubuntu"
	_, err := notJoinedYet("bootstrap.sh", f).Look(t.Context(), n.View())
	var wait trouble.Wait
	must.That(t, errors.As(err, &wait), "%v", err)
	check.Says(t, strings.Join(wait.Try, "\n"), "journalctl -u "+unit)
}
