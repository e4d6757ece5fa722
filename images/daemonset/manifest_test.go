// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"bytes"
	"regexp"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// expression is about a label, or a taint.
type expression struct {
	Key, Operator string
	Values        []string
}

// workload is what is looked at of a manifest.
type workload struct {
	Kind string
	Spec struct {
		Template struct {
			Spec struct {
				AutomountServiceAccountToken *bool             `yaml:"automountServiceAccountToken"`
				NodeSelector                 map[string]string `yaml:"nodeSelector"`
				Tolerations                  []expression
				HostPID                      bool `yaml:"hostPID"`
				HostNetwork                  bool `yaml:"hostNetwork"`
				Affinity                     struct {
					NodeAffinity struct {
						Required struct {
							NodeSelectorTerms []struct {
								MatchExpressions []expression `yaml:"matchExpressions"`
							} `yaml:"nodeSelectorTerms"`
						} `yaml:"requiredDuringSchedulingIgnoredDuringExecution"`
					} `yaml:"nodeAffinity"`
				}
				Containers []struct {
					Image           string
					SecurityContext struct {
						Privileged               bool
						AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
						ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
						Capabilities             struct{ Add, Drop []string }
						SeccompProfile           struct{ Type string } `yaml:"seccompProfile"`
					} `yaml:"securityContext"`
				}
				Volumes []struct {
					Projected struct {
						Sources []struct {
							ServiceAccountToken struct {
								ExpirationSeconds int `yaml:"expirationSeconds"`
							} `yaml:"serviceAccountToken"`
						}
					}
				}
			}
		}
	}
}

// clouds have a manifest each.
func clouds() []string { return []string{"eks", "aks", "gke", "onprem"} }

// read reads a cloud's DaemonSet.
func read(t *testing.T, cloud string) (w workload) {
	t.Helper()
	text := must.Get(Manifests.ReadFile(cloud + ".yaml"))(t)
	for d := yaml.NewDecoder(bytes.NewReader(text)); w.Kind != "DaemonSet"; {
		w = workload{}
		must.OK(t, d.Decode(&w))
	}

	return w
}

// TestPodIsNarrow: the pod has no privilege, a token that is good for an hour, and no place on a
// control plane or on what is not a Linux machine with GPUs.
func TestPodIsNarrow(t *testing.T) {
	for _, cloud := range clouds() {
		t.Run(cloud, func(t *testing.T) { podIsNarrow(t, read(t, cloud)) })
	}
}

func podIsNarrow(t *testing.T, w workload) {
	t.Helper()
	pod := w.Spec.Template.Spec
	check.That(t, !pod.HostPID && !pod.HostNetwork, "hostPID is %v, hostNetwork is %v", pod.HostPID, pod.HostNetwork)
	check.Equal(t, pod.NodeSelector["kubernetes.io/os"], "linux", "the nodes' system is")

	mounts := pod.AutomountServiceAccountToken
	check.That(t, mounts != nil && !*mounts, "the token is mounted that is good for a year")
	var lives []int
	for _, v := range pod.Volumes {
		for _, s := range v.Projected.Sources {
			if seconds := s.ServiceAccountToken.ExpirationSeconds; seconds != 0 {
				lives = append(lives, seconds)
			}
		}
	}

	check.That(t, slices.Equal(lives, []int{3600}), "tokens live for %v s", lives)

	must.That(t, len(pod.Containers) == 1, "%d containers", len(pod.Containers))
	c := pod.Containers[0]
	byDigest := regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)
	check.That(t, byDigest.MatchString(c.Image), "the image %s is not named by its digest", c.Image)
	s := c.SecurityContext
	check.That(t, !s.Privileged, "the container is privileged")
	mayGain := s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation
	check.That(t, !mayGain, "the container may gain privileges")
	check.That(t, s.ReadOnlyRootFilesystem, "the container can write to its root file system")
	check.That(t, s.Capabilities.Add == nil, "the container adds %v", s.Capabilities.Add)
	check.That(t, slices.Equal(s.Capabilities.Drop, []string{"ALL"}), "the container drops %v", s.Capabilities.Drop)
	check.Equal(t, s.SeccompProfile.Type, "RuntimeDefault", "the seccomp profile is")

	// One term is enough for the scheduler, so each must keep out control planes and virtual nodes.
	terms := pod.Affinity.NodeAffinity.Required.NodeSelectorTerms
	must.That(t, len(terms) > 0, "no affinity")
	for _, term := range terms {
		e := term.MatchExpressions
		must.That(t, len(e) == 4, "the affinity has the term %+v", e)
		noControlPlane := e[0].Key == "node-role.kubernetes.io/control-plane" && e[0].Operator == "DoesNotExist"
		check.That(t, noControlPlane, "the affinity has the term %+v", e)
		noVirtualNode := e[1].Key == "type" && e[1].Operator == "NotIn" && slices.Equal(e[1].Values, []string{"virtual-kubelet"})
		check.That(t, noVirtualNode, "the affinity has the term %+v", e)
	}
}

// TestTolerations: a pod comes to a node that nothing else may run on. AKS refuses a toleration
// without a key, so there each has one, and that of AKS's system nodes is not among them.
func TestTolerations(t *testing.T) {
	for _, cloud := range clouds() {
		all := read(t, cloud).Spec.Template.Spec.Tolerations
		blanket := slices.ContainsFunc(all, func(e expression) bool { return e.Key == "" })
		system := slices.ContainsFunc(all, func(e expression) bool {
			return e.Key == "CriticalAddonsOnly"
		})
		check.That(t, blanket == (cloud != "aks") && !system && len(all) > 0, "%s: the tolerations are %+v", cloud, all)
	}
}

// TestSpecs: gpuadm takes the node.toml that each manifest has.
func TestSpecs(t *testing.T) {
	for _, cloud := range clouds() {
		text := must.Get(Manifests.ReadFile(cloud + ".yaml"))(t)
		var config struct{ Data map[string]string }
		must.OK(t, yaml.Unmarshal(text, &config))
		_, err := spec.Parse(spec.File{
			Name: "node.toml",
			Data: []byte(config.Data["node.toml"]),
		})
		check.That(t, err == nil, "%s: %v", cloud, err)
	}
}
