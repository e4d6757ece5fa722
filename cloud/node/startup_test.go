// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

// startupCase is one combination of what the startup taint depends on.
type startupCase struct {
	wanted  string // startup_taint
	clearer string // "", kubeconfig, pod
	gate    string // "", drop-in, other's (of another unit), nodeadm, nodeadm without the boot unit
	open    string // [join] gate
	maker   string // "", taint, label, tag, resolved taint, resolved label: how Karpenter is seen; unread: nodeadm's file cannot be read
	named   string // "", kubelet, user data: where the NodePool's startupTaints are seen to name Karpenter's startup taint; other effect: they name its key, in the user data
}

func (c startupCase) make() (s spec.Spec, f facts.Facts) {
	s = spec.Spec{
		Node: spec.Node{StartupTaint: c.wanted},
		Join: spec.Join{Method: "auto", Gate: c.open},
	}
	f = facts.Facts{
		Kubelet: facts.Kubelet{Unit: "kubelet.service"},
		Files:   map[string][]byte{},
	}
	switch c.clearer {
	case "kubeconfig":
		s.Node.Kubeconfig = "/etc/gpuadm/kubeconfig"
	case "pod":
		f.Files["/run/gpuadm/kubeconfig"] = []byte("x")
	}

	switch c.gate {
	case "drop-in":
		f.Files["/etc/systemd/system/kubelet.service.d/50-gpuadm.conf"] = []byte("x")
	case "other's":
		f.Files["/etc/systemd/system/k3s.service.d/50-gpuadm.conf"] = []byte("x")
	case "nodeadm":
		f.Cloud.Managed = "eks"
		f.Files["/etc/systemd/system/gpuadm.service"] = []byte("x")
	case "nodeadm alone":
		f.Cloud.Managed = "eks"
	case "hybrid": // nodeadm runs once, by hand, and no unit of its own starts kubelet
		f.Cloud.Managed = "eks-hybrid"
		f.Files["/etc/systemd/system/gpuadm.service"] = []byte("x")
	}

	resolved := platform.Of("eks").Join.Resolved
	switch c.maker {
	case "taint":
		f.Kubelet.Taints = []facts.Taint{{
			Key:    "karpenter.sh/unregistered",
			Effect: "NoExecute",
		}}
	case "label":
		f.Kubelet.Labels = map[string]string{"karpenter.sh/nodepool": "gpus"}
	case "resolved taint": // by nodeadm, which has not written kubelet's files yet
		f.Files[resolved] = []byte(`{"spec":{"kubelet":{"config":{"registerWithTaints":[{"key":"karpenter.sh/unregistered","effect":"NoExecute"}]}}}}`)
	case "resolved label":
		f.Files[resolved] = []byte(`{"spec":{"kubelet":{"flags":["--v=2","--node-labels=a=b,karpenter.sh/nodepool=gpus"]}}}`)
	case "unread": // of a nodeadm that is newer than gpuadm
		f.Files[resolved] = []byte(`{"apiVersion":"node.eks.aws/v2","spec":{}}`)
	case "tag":
		f.Instance = &instance.Instance{Tags: map[string]string{"karpenter.sh/nodepool": "gpus"}}
	}

	switch c.named {
	case "kubelet":
		f.Kubelet.Taints = append(f.Kubelet.Taints, facts.Taint{
			Key:    "readiness.k8s.io/gpu",
			Value:  "pending",
			Effect: "NoSchedule",
		})
	case "user data":
		f.Files[resolved] = []byte(`{"spec":{"kubelet":{"config":{"registerWithTaints":[{"key":"karpenter.sh/unregistered","effect":"NoExecute"},{"key":"readiness.k8s.io/gpu","value":"pending","effect":"NoSchedule"}]}}}}`)
	case "other effect": // another taint: Karpenter compares key and effect
		f.Files[resolved] = []byte(`{"spec":{"kubelet":{"config":{"registerWithTaints":[{"key":"karpenter.sh/unregistered","effect":"NoExecute"},{"key":"readiness.k8s.io/gpu","value":"pending","effect":"NoExecute"}]}}}}`)
	}

	return s, f
}

func each(do func(c startupCase)) {
	for _, wanted := range []string{"auto", "none", "example.com/starting=yes:NoExecute", "readiness.k8s.io/mine:NoSchedule", "karpenter.sh/unregistered:NoExecute"} {
		for _, clearer := range []string{"", "kubeconfig", "pod"} {
			for _, gate := range []string{"", "drop-in", "other's", "nodeadm", "nodeadm alone", "hybrid"} {
				for _, open := range []string{"closed", "open"} {
					for _, maker := range []string{"", "taint", "label", "tag", "resolved taint", "resolved label", "unread"} {
						do(startupCase{wanted, clearer, gate, open, maker, ""})
						do(startupCase{wanted, clearer, gate, open, maker, "kubelet"})
						if maker == "resolved taint" {
							do(startupCase{wanted, clearer, gate, open, maker, "user data"})
							do(startupCase{wanted, clearer, gate, open, maker, "other effect"})
						}
					}
				}
			}
		}
	}
}

// unread is expected of a case in which gpuadm cannot tell.
const unread = "unknown"

// expected is what the rules of the design say, in their own words.
func (c startupCase) expected() (taint, failed string) {
	const ca, karpenter, status = "startup-taint.cluster-autoscaler.kubernetes.io/gpu=pending:NoSchedule", "readiness.k8s.io/gpu=pending:NoSchedule",
		"status-taint.cluster-autoscaler.kubernetes.io/gpu=failed:NoSchedule"
	held := (c.gate == "drop-in" || c.gate == "nodeadm") && c.open == "closed"
	switch {
	case c.wanted == "none", c.wanted == "auto" && (held || c.clearer == ""):
		return "", ""
	case strings.HasPrefix(c.wanted, "karpenter.sh/"):
		return string(foreignKey), ""
	case strings.HasPrefix(c.wanted, "example.com/") && c.clearer == "":
		return string(noAccount), ""
	case c.wanted != "auto":
		taint = c.wanted
	case c.maker == "unread": // the signs of Karpenter may be in the file
		return unread, ""
	case c.maker != "":
		if c.named == "" || c.named == "other effect" { // Karpenter before 1.13 would take it for a lasting one
			return "", ""
		}
		taint = karpenter
	default:
		taint = ca
	}

	if c.clearer != "" && c.maker == "" {
		failed = status
	}
	return taint, failed
}

func TestStartupTaint(t *testing.T) {
	counts := map[string]int{}
	each(func(c startupCase) {
		s, f := c.make()
		want, wantFailed := c.expected()
		taint, why, err := startupTaint(s, f)
		got := ""
		code := trouble.Code("")
		switch {
		case trouble.IsUnknown(err):
			got = unread
		case errors.As(err, &code):
			got = string(code)
			if counts[got] == 0 {
				faulted(t, "startup taint: "+got, err, code)
			}
		case taint.Key != "":
			got = taint.String()
		}

		check.That(t, got == want && (err != nil || why != "") && (taint.Key != "" || taint == (spec.Taint{})), "%+v: %s, %q, %v; want %q", c, got, why, err, want)
		check.Equal(t, failedTaint(s, f), parsedTaint(wantFailed), "%+v: the failed taint is", c)
		counts[want]++
	})
	check.That(t, len(counts) == 8, "the cases lead to %v", counts)
}

// TestFormerTaintsUnread: without nodeadm's file gpuadm cannot tell which taints an earlier spec left.
func TestFormerTaintsUnread(t *testing.T) {
	_, f := startupCase{maker: "unread"}.make()
	taints, err := formerTaints(f)
	check.That(t, trouble.IsUnknown(err), "the former taints are %v, %v", taints, err)

	f.Kubelet.Labels = map[string]string{platform.NodePoolLabel: "gpus"} // another sign tells
	taints, err = formerTaints(f)
	check.That(t, err == nil && slices.Contains(taints, readinessTaint()), "the former taints are %v, %v", taints, err)
}

// TestStartupNeeds: what is looked at must have been asked for.
func TestStartupNeeds(t *testing.T) {
	asked := map[string]bool{}
	for _, name := range StartupNeeds().Files {
		asked[name] = true
	}
	each(func(c startupCase) {
		_, f := c.make()
		for name := range f.Files {
			must.That(t, asked[name], "%s is not asked for", name)
		}
	})
}

func TestParsedTaint(t *testing.T) {
	for _, text := range []string{"a:NoSchedule", "a/b=c:NoExecute", "a=b:PreferNoSchedule"} {
		check.Equal(t, parsedTaint(text).String(), text, "%s became", text)
	}
}

// TestQuickKubelet: a kubelet that registers its node before we look again has done so because we
// started it: the journal has it, and undo says that the cluster still has the node. One that was
// there at first is nobody's change.
func TestQuickKubelet(t *testing.T) {
	a := apiFixture(t, apiSpec)
	wanted := func() converge.Want {
		return WaitRegistered(new(Session), spec.Spec{}, a.facts, "gpu-1", apiKubelet)
	}
	look := func(w converge.Want, want converge.State) {
		t.Helper()
		is, err := w.Look(a.ctx, a)
		check.That(t, err == nil && is == want, "%q, %v; want %q", is, err, want)
	}

	look(wanted(), "there")

	a.sim.DeleteNode("gpu-1")
	w := wanted()
	look(w, "")
	a.sim.AddNode("gpu-1", nil)
	look(w, "")
	must.OK(t, w.Make(a.ctx, a, "there"))
	look(w, "there")
}

// TestKeepsPodsOff: status says what keeps pods off at a boot, and that a taint does not hold those
// that are bound already.
func TestKeepsPodsOff(t *testing.T) {
	each(func(c startupCase) {
		s, f := c.make()
		startup, _, err := startupTaint(s, f)
		want := "nothing keeps pods away"
		switch {
		case err != nil:
			want = ""
		case (c.gate == "drop-in" || c.gate == "nodeadm") && c.open == "closed":
			want = "kubelet waits until the GPUs are ready, and pods that are bound to the node wait with it"
		case startup.Key != "":
			want = "those that are bound to the node already come back with kubelet"
		}

		got := keepsPodsOff(s, f)
		check.That(t, strings.Contains(got, want) && (want != "" || got == ""), "%+v: %q, want %q", c, got, want)
	})
	n := joins.Recorded(t, "ubuntu24-h100", nil)
	for text, want := range map[string]string{"[runtime]\n": "", "[node]\n": "nothing keeps pods away before the GPUs are ready: no account here may take a startup taint off"} {
		got, err := KeepsPodsOff(t.Context(), n.View(), specs.Of(t, text))
		check.That(t, err == nil && strings.Contains(got, want) && (want != "" || got == ""), "%q: %q %v", text, got, err)
	}

	got, err := KeepsPodsOff(t.Context(), joins.Recorded(t, "no-gpu", nil).View(), specs.Of(t, "[node]\n"))
	check.That(t, got == "" && err == nil, "without GPUs: %q %v", got, err)
}

// TestStartupTaintWithoutAnswer: while the cluster does not say whether the DaemonSet's account may be
// used, kubelet's flags keep a startup taint, and get none. A clear no takes it out.
func TestStartupTaintWithoutAnswer(t *testing.T) {
	taint := autoscalerTaint()
	registered := facts.Kubelet{Taints: []facts.Taint{{
		Key:    taint.Key,
		Value:  taint.Value,
		Effect: taint.Effect,
	}}}
	unsure := map[string][]byte{PodUnsure: []byte("x")}
	for name, tt := range map[string]struct {
		facts facts.Facts
		keeps bool
	}{
		"no answer":            {facts.Facts{Kubelet: registered, Files: unsure}, true},
		"no answer, no taint":  {facts.Facts{Files: unsure}, false},
		"a no":                 {facts.Facts{Kubelet: registered}, false},
		"the account is there": {facts.Facts{Files: map[string][]byte{PodKubeconfig: []byte("x")}}, true},
	} {
		s := specs.Of(t, "[node]\n")
		_, taints, err := Registration(s, tt.facts)
		must.OK(t, err)
		check.That(t, slices.Contains(taints, taint) == tt.keeps, "%s: kubelet registers with %v", name, taints)
	}
}
