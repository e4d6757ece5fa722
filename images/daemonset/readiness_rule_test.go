// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"os"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestReadinessRule: the rule is of the form that the controller's API has, it changes no node as
// it is shipped, and it says what gpuadm writes. Source of the fields:
// kubernetes-sigs/node-readiness-controller, api/v1alpha1/nodereadinessrule_types.go.
func TestReadinessRule(t *testing.T) {
	file := must.Get(os.Open("readiness-rule.yaml"))(t)
	defer file.Close()
	var rule struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name string }
		Spec       struct {
			DryRun          bool   `yaml:"dryRun"`
			EnforcementMode string `yaml:"enforcementMode"`
			Conditions      []struct {
				Type           string
				RequiredStatus string `yaml:"requiredStatus"`
			}
			Taint        struct{ Key, Value, Effect string }
			NodeSelector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			} `yaml:"nodeSelector"`
		}
	}
	d := yaml.NewDecoder(file)
	d.KnownFields(true)
	must.OK(t, d.Decode(&rule))
	s := rule.Spec
	check.That(t, rule.APIVersion == "readiness.node.x-k8s.io/v1alpha1" && rule.Kind == "NodeReadinessRule" && s.EnforcementMode == "continuous" && s.DryRun, "%+v", rule)
	check.That(t, len(s.Conditions) == 1 && s.Conditions[0].Type == "nvidia.com/GPUReady" && s.Conditions[0].RequiredStatus == "True", "conditions %+v", s.Conditions)
	if s.Taint.Key != "readiness.k8s.io/gpu" || s.Taint.Value != "pending" || s.Taint.Effect != "NoSchedule" || s.NodeSelector.MatchLabels["nvidia.com/gpu.present"] != "true" {
		t.Errorf("taint %+v, nodes %v", s.Taint, s.NodeSelector.MatchLabels)
	}
}
