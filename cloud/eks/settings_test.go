// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

func TestNodeadmGate(t *testing.T) {
	for gate, want := range map[string]string{"closed": "gate --wait\n", "open": "Wants=gpuadm.service"} {
		s := specs.Of(t, "[join]\nmethod = \"eks\"\ngate = \""+gate+"\"\n")
		n := joins.Recorded(t, "al2023-eks-nvidia", nil)
		f := must.Get(facts.Gather(t.Context(), n, node.StartupNeeds().And(facts.Needs{Files: method.Files(s)})))(t)
		wants, err := Wants(new(node.Session), s, f)
		check.That(t, err == nil && !strings.Contains(fmt.Sprint(wants), nodeadm().Unit), "without gpuadm.service nodeadm-run waits for no unit: %v %v", wants, err)
		_, text := waitDropIn(s)
		check.That(t, strings.Contains(text, want) && strings.Contains(text, "After=gpuadm.service") && !strings.Contains(text, "Requires=") && !strings.Contains(text, "Restart="),
			"%s:\n%s", gate, text)
	}
}

// TestNodeadmOld: the images before v20251023 do not read the folder, so the node would register
// without its labels. That is refused.
// Source: https://github.com/awslabs/amazon-eks-ami, nodeadm-run.service before and after 0d558ec3
// and 81179a55.
func TestNodeadmOld(t *testing.T) {
	s := specs.Of(t, "[join]\nmethod = \"eks\"\n[node]\nlabels = { \"example.com/a\" = \"b\" }\n")
	for files, refused := range map[string]bool{"": false, "[Service]\nType=oneshot\nExecStart=/usr/bin/nodeadm init --skip config\n": true} {
		machine := joins.Recorded(t, "al2023-eks-nvidia", nil)
		if files != "" {
			machine = joins.Recorded(t, "al2023-eks-nvidia", map[string]string{nodeadm().UnitFile: files})
		}
		f := must.Get(facts.Gather(t.Context(), machine, node.StartupNeeds().And(facts.Needs{Files: method.Files(s)})))(t)
		wants, err := Wants(new(node.Session), s, f)
		check.That(t, (err != nil) == refused && (!refused || strings.Contains(joins.Because(err), "v20251023")), "refused %v: %v %v", refused, wants, err)
	}
}

// TestNodeadmHandler: nodeadm has the handler nvidia built in, and another one is refused.
func TestNodeadmHandler(t *testing.T) {
	s := specs.Of(t, "[join]\nmethod = \"eks\"\n[runtime]\nhandler = \"gpu\"\n")
	f := must.Get(facts.Gather(t.Context(), joins.Recorded(t, "al2023-eks-nvidia", nil), node.StartupNeeds().And(facts.Needs{Files: method.Files(s)})))(t)
	_, err := Wants(new(node.Session), s, f)
	check.That(t, err != nil && strings.Contains(err.Error(), "cannot give containerd the handler gpu"), "%v", err)
}

// TestNodeadmVersions: a NodeConfig that gpuadm does not know is an error, and not one without taints.
// The first is what nodeadm writes: it keeps its internal version, which has no apiVersion.
func TestNodeadmVersions(t *testing.T) {
	for text, says := range map[string]string{
		joins.Resolved: "",
		`{"apiVersion":"node.eks.aws/v1alpha1","spec":{"kubelet":{"flags":[]}}}`: "",
		"": "",
		`{"apiVersion":"node.eks.aws/v1","spec":{"kubelet":{"taints":[]}}}`: `its apiVersion is "node.eks.aws/v1"`,
		`{"spec":{"node":{"taints":[{"key":"a"}]}},"status":{}}`:            "no spec.kubelet",
		`{}`: "no spec.kubelet",
	} {
		s := specs.Of(t, "[join]\nmethod = \"eks\"\n[node]\ntaints = [\"example.com/a=b:NoSchedule\"]\n")
		n := joins.Recorded(t, "al2023-eks-nvidia", map[string]string{nodeadm().Resolved: text})
		f := must.Get(facts.Gather(t.Context(), n, node.StartupNeeds().And(facts.Needs{Files: method.Files(s)})))(t)
		_, err := Wants(new(node.Session), s, f)
		check.That(t, (err != nil) == (says != "") && strings.Contains(fmt.Sprint(err), says), "%s: %v, want %q", text, err, says)
	}
}

// FuzzRead has nothing that others wrote break the file that we write.
func FuzzRead(f *testing.F) {
	f.Add([]byte(joins.Resolved))
	f.Add([]byte(`{"spec":{"kubelet":{"config":{"registerWithTaints":[{"key":"a\n- b","value":"\u0000","effect":"x: y"}]}}}}`))
	s := spec.Spec{}
	f.Fuzz(func(t *testing.T, data []byte) {
		var resolved instance.UserKubelet
		var err error
		alloc.Most(t, 1000, len(data), func() { resolved, err = instance.ReadResolved(nodeadm().Resolved, data) })
		if err != nil {
			return
		}
		ours := spec.Taint{
			Key:    "example.com/x",
			Value:  "y",
			Effect: "NoSchedule",
		}
		text := must.Get(settingsText(s, facts.Facts{}, map[string]string{"a": "b"}, []spec.Taint{ours}, resolved))(t)
		again, err := settingsText(s, facts.Facts{Files: map[string][]byte{nodeadm().Settings: text}}, map[string]string{"a": "b"}, []spec.Taint{ours}, resolved)
		check.That(t, err == nil && string(again) == string(text), "not the same again: %v\n%s\n%s", err, text, again)
		var doc map[string]any
		if err := yaml.Unmarshal(text, &doc); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	})
}
