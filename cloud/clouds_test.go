// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/images/systemd"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/cloudfake"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// recorded is a machine of test/hosts, with files beside its own.
func recorded(t *testing.T, name string, files map[string]string) *simhost.Node {
	t.Helper()
	data, err := os.ReadFile("../test/hosts/" + name + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	n, err := simhost.New(data)
	if err != nil {
		t.Fatal(err)
	}
	// What the recording left out, and a join reads.
	for name, text := range map[string]string{nodeadmResolved: "{}", kubelet.Kubeconfig: "kind: Config\n"} {
		if i, err := n.Stat(name); err == nil && i.Size > 0 {
			eksMust(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
		}
	}
	for name, text := range files {
		var folders []string
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			folders = append(folders, dir)
		}
		for _, dir := range slices.Backward(folders) {
			if _, err := n.Stat(dir); err != nil {
				eksMust(t, n.Mkdir(dir, host.Attr{Mode: 0o755}))
			}
		}
		eksMust(t, n.WriteFile(name, []byte(text), host.Attr{Mode: 0o644}))
	}
	return n
}

func cloudEngine(s spec.Spec) *converge.Engine {
	return &converge.Engine{Stages: []converge.Stage{Join(new(Session))}, Spec: s, ThingOf: func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "unit-files" {
			return things.NewUnitFiles(ref.Name), nil
		}
		return testThing(ref)
	}, Version: "test"}
}

// resolvedConfig is what nodeadm-config notes of Karpenter's user data.
const resolvedConfig = `{"spec":{"cluster":{"name":"gpus"},"containerd":{"config":""},"kubelet":{"config":{"maxPods":250,
 "registerWithTaints":[{"key":"karpenter.sh/unregistered","effect":"NoExecute"}]},"flags":["--node-labels=karpenter.sh/nodepool=gpu"]}},"status":{}}`

// TestNodeadm tells nodeadm labels, the union of the taints, and has it wait; twice, and back.
func TestNodeadm(t *testing.T) {
	text := "[join]\nmethod = \"auto\"\n[node]\ngpu_labels = false\nlabels = { \"example.com/team\" = \"a\" }\ntaints = [\"nvidia.com/gpu=present:NoSchedule\"]\n"
	n := recorded(t, "al2023-eks-nvidia", map[string]string{nodeadmResolved: resolvedConfig, bootUnit: string(systemd.Service)})
	first := n.Tree(converge.Home, "/run", "/proc")
	e := cloudEngine(joinSpec(t, text))
	apply := func() converge.Result {
		t.Helper()
		res, err := e.Apply(t.Context(), n)
		if err != nil {
			t.Fatalf("%v\n%s", err, joinBecause(err))
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
	told := read(nodeadmDropIn)
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
	if got := read(gateOf(nodeadmRun)); !strings.Contains(got, "ExecStartPre=/usr/local/sbin/gpuadm gate\nRestart=on-failure\n") {
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
	merged := strings.Replace(resolvedConfig, `"effect":"NoExecute"}]`, `"effect":"NoExecute"},{"key":"nvidia.com/gpu","value":"present","effect":"NoSchedule"},{"key":"example.com/own","effect":"NoSchedule"}]`, 1)
	if err := n.WriteFile(nodeadmResolved, []byte(merged), host.Attr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	e.Spec = joinSpec(t, strings.Replace(text, "nvidia.com/gpu", "example.com/other", 1))
	apply()
	if told := read(nodeadmDropIn); strings.Contains(told, "nvidia.com/gpu") || !strings.Contains(told, "example.com/own") || !strings.Contains(told, "karpenter.sh/unregistered") || !strings.Contains(told, "example.com/other") {
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
	s := joinSpec(t, "[join]\nmethod = \"eks\"\n[node]\nlabels = { \"example.com/team\" = \"a\" }\n")
	files := map[string]string{bootUnit: string(systemd.Service)}
	whole := recorded(t, "al2023-eks-nvidia", files)
	from := whole.Touches()
	if _, err := cloudEngine(s).Apply(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	want := whole.Tree(converge.Home, "/run", "/proc")
	for cut := range whole.Touches() - from {
		n := recorded(t, "al2023-eks-nvidia", files)
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

func TestNodeadmGate(t *testing.T) {
	for gate, want := range map[string]string{"closed": "ExecStartPre=", "open": "Wants=gpuadm.service"} {
		s := joinSpec(t, "[join]\nmethod = \"eks\"\ngate = \""+gate+"\"\n")
		n := recorded(t, "al2023-eks-nvidia", nil)
		f, err := facts.Gather(t.Context(), n, Join(new(Session)).Needs(s))
		if err != nil {
			t.Fatal(err)
		}
		if wants, err := eks(new(Session), s, f); err != nil || strings.Contains(fmt.Sprint(wants), nodeadmRun) {
			t.Errorf("without gpuadm.service nodeadm-run waits for no unit: %v %v", wants, err)
		}
		if _, text := nodeadmUnit(s); !strings.Contains(text, want) || !strings.Contains(text, "After=gpuadm.service") || strings.Contains(text, "Requires=") {
			t.Errorf("%s:\n%s", gate, text)
		}
	}
}

// TestNodeadmHandler gives containerd a handler of another name through nodeadm, and not beside the user data's.
func TestNodeadmHandler(t *testing.T) {
	s := joinSpec(t, "[join]\nmethod = \"eks\"\n[runtime]\nhandler = \"gpu\"\nset_as_default = true\n")
	gather := func(files map[string]string) facts.Facts {
		f, err := facts.Gather(t.Context(), recorded(t, "al2023-eks-nvidia", files), Join(new(Session)).Needs(s))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	got, err := nodeadmRuntime(s, gather(nil), nodeadmSpec{})
	if err != nil || !strings.Contains(got, "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd]\ndefault_runtime_name = \"gpu\"\n") ||
		!strings.Contains(got, `.runtimes."gpu".options]`) {
		t.Errorf("%v\n%s", err, got)
	}
	resolved := strings.Replace(resolvedConfig, `"config":""`, `"config":"oom_score = 1"`, 1)
	_, err = eks(new(Session), s, gather(map[string]string{nodeadmResolved: resolved}))
	if err == nil || !strings.Contains(err.Error(), "spec.containerd.config already") {
		t.Error(err)
	}
}

// FuzzNodeadmReads has nothing that others wrote break the file that we write.
func FuzzNodeadmReads(f *testing.F) {
	f.Add([]byte(resolvedConfig))
	f.Add([]byte(`{"spec":{"kubelet":{"config":{"registerWithTaints":[{"key":"a\n- b","value":"\u0000","effect":"x: y"}]}}}}`))
	s := spec.Spec{}
	f.Fuzz(func(t *testing.T, data []byte) {
		var resolved nodeadmSpec
		var err error
		alloc.Most(t, 1000, len(data), func() { resolved, err = nodeadmReads(data) })
		if err != nil {
			return
		}
		ours := spec.Taint{Key: "example.com/x", Value: "y", Effect: "NoSchedule"}
		text, err := nodeadmText(s, facts.Facts{}, map[string]string{"a": "b"}, []spec.Taint{ours}, resolved)
		if err != nil {
			t.Fatal(err)
		}
		again, err := nodeadmText(s, facts.Facts{Files: map[string][]byte{nodeadmDropIn: text}}, map[string]string{"a": "b"}, []spec.Taint{ours}, resolved)
		if err != nil || string(again) != string(text) {
			t.Errorf("not the same again: %v\n%s\n%s", err, text, again)
		}
		var doc map[string]any
		if err := yaml.Unmarshal(text, &doc); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	})
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
		"GKE pool, COS":       {host: "gke-ubuntu", join: `method = "gke"`, files: cos, notes: []string{"verifies and labels", "nvidia-driver-installer"}},
		"no GKE":              {host: "ubuntu24-h100", join: `method = "gke"`, err: []string{"none of them", "DaemonSet", "customNodeInit", `method = "token"`}},
		"no EKS":              {host: "ubuntu24-h100", join: "method = \"eks\"\ncluster = \"c\"", err: []string{"not in EC2", "hybrid"}},
		"nothing":             {host: "ubuntu24-h100", join: `method = "auto"`, err: []string{"looked for", "token_file"}},
		"auto, half a token":  {host: "ubuntu24-h100", join: "method = \"auto\"\ntoken_file = \"/t\"", err: []string{"server, or ca_file or ca_pin, is missing"}},
		"EKS with nodeadm":    {host: "al2023-eks-nvidia", join: `method = "auto"`, wants: "folder folder folder file", notes: []string{"nodeadm joins this machine", "gpuadm apply --install"}},
		"EKS, bootstrap.sh":   {host: "ubuntu24-h100", join: `method = "auto"`, files: map[string]string{"/etc/eks/bootstrap.sh": "#!/bin/sh\n"}, notes: []string{"--kubelet-extra-args '--node-labels=k8s.amazonaws.com/accelerator="}},
		"EKS, hybrid":         {host: "ubuntu24-h100", join: `method = "auto"`, files: map[string]string{"/opt/nodeadm/tracker": "x"}, notes: []string{"nodeadm of EKS Hybrid Nodes joins"}},
		"AKS Flex":            {host: "ubuntu24-h100", join: `method = "auto"`, files: map[string]string{"/etc/aks-flex-node/config.json": "{}"}, notes: []string{"AKS Flex Node joins"}},
		"EKS, but not joined": {host: "al2023-eks-nvidia", join: `method = "none"`},
	} {
		t.Run(name, func(t *testing.T) {
			n := recorded(t, c.host, c.files)
			s := joinSpec(t, "[join]\n"+c.join+"\n[node]\ngpu_labels = false\n")
			f, err := facts.Gather(t.Context(), n, Join(new(Session)).Needs(s))
			if err != nil {
				t.Fatal(err)
			}
			wants, err := Join(new(Session)).Wants(s, f)
			said := fmt.Sprint(err) + joinBecause(err)
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
				kinds = append(kinds, w.Kind())
			}
			if got := strings.Join(kinds, " "); got != c.wants {
				t.Errorf("wants %q, not %q", got, c.wants)
			}
			notes := strings.Join(Join(new(Session)).Notes(n.View(), s, f), "\n")
			for _, word := range c.notes {
				if !strings.Contains(notes, word) {
					t.Errorf("not noted: %q in\n%s", word, notes)
				}
			}
		})
	}
}

// TestAKSWaits waits for AKS's own scripts.
func TestAKSWaits(t *testing.T) {
	n := recorded(t, "aks-ubuntu2204", nil)
	if err := n.Remove(aksProvisioned); err != nil {
		t.Fatal(err)
	}
	w := aksDone(facts.Facts{})
	if _, err := w.Look(t.Context(), n.View()); !converge.Passes(err) {
		t.Error(err)
	}
}

// TestAKSBoots does not wait for scripts that wait for us: they start kubelet, which waits for gpuadm.service.
func TestAKSBoots(t *testing.T) {
	n := recorded(t, "aks-ubuntu2204", nil)
	if err := n.Remove(aksProvisioned); err != nil {
		t.Fatal(err)
	}
	s := joinSpec(t, "[join]\nmethod = \"aks\"\n")
	f, err := facts.Gather(t.Context(), n, Join(new(Session)).Needs(s))
	if err != nil {
		t.Fatal(err)
	}
	f.Booting = true
	wants, err := aks(f)
	if err != nil || len(wants) != 1 {
		t.Fatal(wants, err)
	}
	var later host.Later
	if _, err := wants[0].Look(t.Context(), n.View()); !errors.As(err, &later) {
		t.Error(err)
	}
}

// TestPoolWaits does not wait within a run where the cloud's own scripts have not joined the machine yet: they may be waiting
// for us, or come in an hour.
func TestPoolWaits(t *testing.T) {
	for name, how := range map[string]string{"aks-ubuntu2204": "aks", "gke-ubuntu": "gke", "al2023-eks-nvidia": "eks"} {
		n := recorded(t, name, nil)
		s := joinSpec(t, "[join]\nmethod = \""+how+"\"\n")
		f, err := facts.Gather(t.Context(), n, facts.Needs{})
		if err != nil {
			t.Fatal(err)
		}
		f.Kubelet.Joined = false
		wants, err := Joined(new(Session)).Wants(s, f)
		if err != nil || len(wants) != 1 {
			t.Fatal(name, wants, err)
		}
		if _, err := wants[0].Look(t.Context(), n.View()); !converge.Passes(err) || !strings.Contains(err.Error(), "to join this machine") {
			t.Errorf("%s: %v", name, err)
		} else if w := (converge.Wait{}); !errors.As(err, &w) || strings.Contains(fmt.Sprint(w.Try), "nodeadm-config") != (how == "eks") {
			t.Errorf("%s: try %q", name, w.Try)
		}
		f.Booting = true
		if wants, err = Joined(new(Session)).Wants(s, f); err != nil {
			t.Fatal(name, err)
		}
		var later host.Later
		if _, err := wants[0].Look(t.Context(), n.View()); !errors.As(err, &later) {
			t.Errorf("%s, at a boot: %v", name, err)
		}
	}
}

// TestLeaving begins nothing on a machine that goes, and ends with "try again" only where it comes back by itself.
func TestLeaving(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 7, 0, 0, time.UTC)
	for _, c := range []struct {
		what   string
		at     time.Time
		says   string // "": nothing
		passes bool
	}{
		{"terminate", at, "takes this machine away at 2026-02-03T04:07:00Z", false},
		{"preempt", time.Time{}, "takes this machine away at any moment", false},
		{"stop", at, "stops this machine at 2026-02-03T04:07:00Z", false},
		{"hibernate", at, "stops this machine at 2026-02-03T04:07:00Z", false},
		{"redeploy", at, "restarts this machine on other hardware at 2026-02-03T04:07:00Z", true},
		{"reboot", at, "restarts this machine at 2026-02-03T04:07:00Z", true},
		{"rebalance", at, "", false},
		{"maintenance", at, "", false},
		{"freeze", at, "", false},
	} {
		err := Leaving(facts.Facts{Instance: &instance.Instance{Cloud: "azure", Notice: &instance.Notice{What: c.what, At: c.at}}})
		if (err != nil) != (c.says != "") || converge.Passes(err) != c.passes || err != nil && err.Error() != "cannot begin: Azure "+c.says {
			t.Errorf("%q: %v", c.what, err)
		}
	}
	if Leaving(facts.Facts{}) != nil || Leaving(facts.Facts{Instance: &instance.Instance{Cloud: "aws"}}) != nil {
		t.Error("who was not asked says nothing")
	}
}

// TestAskLeavingAzure asks Azure, which knows its machines by other names than they have themselves.
func TestAskLeavingAzure(t *testing.T) {
	n := recorded(t, "aks-ubuntu2204", nil)
	cloud := &cloudfake.Fake{Machine: cloudfake.Machine{
		ID: "5f2b7a0e-0000-4000-8000-000000000001", Type: "Standard_ND96isr_H100_v5", Region: "eastus", Name: "aks-gpu-12345678-vmss_0", Spot: true,
	}}
	n.Serve("169.254.169.254", cloud.Azure())
	f, err := facts.Gather(t.Context(), n, facts.Needs{})
	if err != nil {
		t.Fatal(err)
	}
	if err := new(Session).AskLeaving(t.Context(), n.View(), f); err != nil {
		t.Error(err)
	}
	cloud.Machine.Events = `{"Events":[{"EventType":"Preempt","Resources":["aks-gpu-12345678-vmss_0"],"NotBefore":"Tue, 03 Feb 2026 04:07:00 GMT"}]}`
	if err := new(Session).AskLeaving(t.Context(), n.View(), f); err == nil || !strings.Contains(err.Error(), "Azure takes this machine away at 2026-02-03T04:07:00Z") {
		t.Error(err)
	}
}

// TestAskLeaving asks only a cloud, and reads what it says.
func TestAskLeaving(t *testing.T) {
	c := startEKS(t, eksMachine, eksJoin)
	f, err := facts.Gather(t.Context(), c.n, facts.Needs{})
	if err != nil {
		t.Fatal(err)
	}
	if err := new(Session).AskLeaving(t.Context(), c.n.View(), f); err != nil {
		t.Error(err)
	}
	c.Machine.SpotAction = `{"action":"terminate","time":"2026-02-03T04:07:00Z"}`
	if err := new(Session).AskLeaving(t.Context(), c.n.View(), f); err == nil || !strings.Contains(err.Error(), "04:07") {
		t.Error(err)
	}
	f.Cloud = instance.Cloud{}
	before := len(c.Requests())
	if err := new(Session).AskLeaving(t.Context(), c.n.View(), f); err != nil || len(c.Requests()) != before {
		t.Error("no cloud was asked", err)
	}
}
