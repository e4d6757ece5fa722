// SPDX-FileCopyrightText: The gpuadm authors
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

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/images/systemd"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
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
	n := joins.Recorded(t, "al2023-eks-nvidia", map[string]string{method.NodeadmResolved: joins.Resolved, node.BootUnit: string(systemd.Service)})
	first := n.Tree(converge.Home, "/run", "/proc")
	e := cloudEngine(joins.Spec(t, text))
	apply := func() converge.Result {
		t.Helper()
		res, err := e.Apply(t.Context(), n)
		if err != nil {
			t.Fatalf("%v\n%s", err, joins.Because(err))
		}
		return res
	}
	apply()
	read := func(name string) string {
		t.Helper()
		data, err := n.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	told := read(method.NodeadmDropIn)
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
	if err := yaml.Unmarshal([]byte(told), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.APIVersion != "node.eks.aws/v1alpha1" || doc.Kind != "NodeConfig" || doc.Spec.Containerd != nil {
		t.Errorf("%+v", doc)
	}
	if want := []string{"--node-labels=example.com/team=a,k8s.amazonaws.com/accelerator=nvidia-h100"}; !cmp.Equal(want, doc.Spec.Kubelet.Flags) {
		t.Errorf("flags %v", doc.Spec.Kubelet.Flags)
	}
	if got := fmt.Sprint(doc.Spec.Kubelet.Config.Taints); got != "[{karpenter.sh/unregistered  NoExecute} {nvidia.com/gpu present NoSchedule}]" {
		t.Errorf("taints %s", got)
	}
	if got := read(node.GateOf(method.NodeadmRun)); !strings.Contains(got, "ExecStartPre=/usr/local/sbin/gpuadm gate --wait\n") {
		t.Errorf("nodeadm-run does not ask the gate:\n%s", got)
	}
	for _, owned := range []string{"/etc/containerd/config.toml", "/etc/kubernetes/kubelet/config.json", "/etc/eks/kubelet/environment"} {
		if strings.Contains(first, owned) && !strings.Contains(n.Tree(), owned) {
			t.Errorf("%s is gone", owned)
		}
	}
	touched := n.Touches()
	if res := apply(); len(res.Made) > 0 || n.Touches() != touched {
		t.Errorf("a second apply made %v", res.Made)
	}
	// nodeadm-run merges ours into what it notes. A taint that node.toml drops goes all the same, and the user data's stays.
	merged := strings.Replace(joins.Resolved, `"effect":"NoExecute"}]`, `"effect":"NoExecute"},{"key":"nvidia.com/gpu","value":"present","effect":"NoSchedule"},{"key":"example.com/own","effect":"NoSchedule"}]`, 1)
	if err := n.WriteFile(method.NodeadmResolved, []byte(merged), host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	e.Spec = joins.Spec(t, strings.Replace(text, "nvidia.com/gpu", "example.com/other", 1))
	apply()
	if told := read(method.NodeadmDropIn); strings.Contains(told, "nvidia.com/gpu") || !strings.Contains(told, "example.com/own") || !strings.Contains(told, "karpenter.sh/unregistered") || !strings.Contains(told, "example.com/other") {
		t.Errorf("taints:\n%s", told)
	}
	if _, err := e.Undo(t.Context(), n, "all", nil); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(first, n.Tree(converge.Home, "/run", "/proc")); d != "" {
		t.Errorf("undo (-before +after)\n%s", d)
	}
	if v := n.Violations(); len(v) > 0 {
		t.Error(v)
	}
}

// TestNodeadmPowerCuts heals from a cut at any touch.
func TestNodeadmPowerCuts(t *testing.T) {
	s := joins.Spec(t, "[join]\nmethod = \"eks\"\n[node]\nlabels = { \"example.com/team\" = \"a\" }\n")
	files := map[string]string{node.BootUnit: string(systemd.Service)}
	whole := joins.Recorded(t, "al2023-eks-nvidia", files)
	from := whole.Touches()
	if _, err := cloudEngine(s).Apply(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	want := whole.Tree(converge.Home, "/run", "/proc")
	for cut := range whole.Touches() - from {
		n := joins.Recorded(t, "al2023-eks-nvidia", files)
		n.CutAt(n.Touches() + cut)
		if _, err := cloudEngine(s).Apply(context.Background(), n); err == nil || !n.Off() {
			t.Fatalf("touch %d was not cut: %v", cut, err)
		}
		n.Boot(simhost.LoseAll)
		if _, err := cloudEngine(s).Apply(context.Background(), n); err != nil {
			t.Fatalf("touch %d: %v", cut, err)
		}
		if d := cmp.Diff(want, n.Tree(converge.Home, "/run", "/proc")); d != "" {
			t.Fatalf("touch %d (-whole +healed)\n%s", cut, d)
		}
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
		"AKS pool":            {host: "aks-ubuntu2204", join: `method = "auto"`, wants: "check", notes: []string{"leaves those alone", "--gpu-driver none", "SkipGpuDriverInstall=true"}},
		"no AKS pool":         {host: "ubuntu24-h100", join: `method = "aks"`, err: []string{"in none of its node pools", "az aks nodepool add"}},
		"GKE pool":            {host: "gke-ubuntu", join: `method = "auto"`, notes: []string{"every stage but that", "gpu-driver-version=disabled", "gke-accelerator"}},
		"GKE pool, COS":       {host: "gke-ubuntu", join: `method = "gke"`, files: cos, notes: []string{"verifies and labels"}},
		"no GKE":              {host: "ubuntu24-h100", join: `method = "gke"`, err: []string{"none of them", "DaemonSet", "customNodeInit", "kubeadm join"}},
		"no EKS":              {host: "ubuntu24-h100", join: "method = \"eks\"\ncluster = \"c\"", err: []string{"not in EC2", "hybrid"}},
		"nothing":             {host: "ubuntu24-h100", join: `method = "auto"`, err: []string{"looked for", "kubeadm join"}},
		"EKS with nodeadm":    {host: "al2023-eks-nvidia", join: `method = "auto"`, wants: "folder folder folder file", notes: []string{"nodeadm joins this machine", "gpuadm apply --install"}},
		"EKS, bootstrap.sh":   {host: "ubuntu24-h100", join: `method = "auto"`, files: map[string]string{"/etc/eks/bootstrap.sh": "#!/bin/sh\n"}, notes: []string{"--kubelet-extra-args '--node-labels=k8s.amazonaws.com/accelerator="}},
		"EKS, hybrid":         {host: "ubuntu24-h100", join: `method = "auto"`, files: map[string]string{"/opt/nodeadm/tracker": "x"}, notes: []string{"nodeadm of EKS Hybrid Nodes joins"}},
		"AKS Flex":            {host: "ubuntu24-h100", join: `method = "auto"`, files: map[string]string{"/etc/aks-flex-node/config.json": "{}"}, notes: []string{"AKS Flex Node joins"}},
		"EKS, but not joined": {host: "al2023-eks-nvidia", join: `method = "none"`},
	} {
		t.Run(name, func(t *testing.T) {
			n := joins.Recorded(t, c.host, c.files)
			s := joins.Spec(t, "[join]\n"+c.join+"\n[node]\ngpu_labels = false\n")
			f, err := facts.Gather(t.Context(), n, Join(new(node.Session)).Needs(s))
			if err != nil {
				t.Fatal(err)
			}
			wants, err := Join(new(node.Session)).Wants(s, f)
			said := fmt.Sprint(err) + joins.Because(err)
			for _, word := range c.err {
				if !strings.Contains(said, word) {
					t.Errorf("not said: %q in\n%s", word, said)
				}
			}
			if (err != nil) != (len(c.err) > 0) {
				t.Fatal(said)
			}
			var kinds []string
			for _, w := range wants {
				kinds = append(kinds, w.Ref().Kind)
			}
			if got := strings.Join(kinds, " "); got != c.wants {
				t.Errorf("wants %q, not %q", got, c.wants)
			}
			notes := strings.Join(Join(new(node.Session)).Notes(n.View(), s, f), "\n")
			for _, word := range c.notes {
				if !strings.Contains(notes, word) {
					t.Errorf("not noted: %q in\n%s", word, notes)
				}
			}
		})
	}
}

// TestPoolWaits does not wait within a run where the cloud's own scripts have not joined the machine yet: they may be waiting
// for us, or come in an hour.
func TestPoolWaits(t *testing.T) {
	for name, how := range map[string]string{"aks-ubuntu2204": "aks", "gke-ubuntu": "gke", "al2023-eks-nvidia": "eks"} {
		n := joins.Recorded(t, name, nil)
		s := joins.Spec(t, "[join]\nmethod = \""+how+"\"\n")
		f, err := facts.Gather(t.Context(), n, facts.Needs{})
		if err != nil {
			t.Fatal(err)
		}
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
		if _, err := wants[0].Look(t.Context(), n.View()); !errors.As(err, &later) {
			t.Errorf("%s, at a boot: %v", name, err)
		}
	}
}
