// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"bytes"
	"regexp"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

// workload is what is looked at of a manifest.
type workload struct {
	Kind string
	Spec struct {
		Template struct {
			Spec struct {
				AutomountServiceAccountToken *bool `yaml:"automountServiceAccountToken"`
				HostPID                      bool  `yaml:"hostPID"`
				HostNetwork                  bool  `yaml:"hostNetwork"`
				Affinity                     struct {
					NodeAffinity struct {
						Required struct {
							NodeSelectorTerms []struct {
								MatchExpressions []struct{ Key, Operator string } `yaml:"matchExpressions"`
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

// TestPodIsNarrow: the pod has no privilege, a token that is good for an hour, and no place on a control plane.
func TestPodIsNarrow(t *testing.T) {
	var w workload
	for d := yaml.NewDecoder(bytes.NewReader(Manifest)); w.Kind != "DaemonSet"; {
		w = workload{}
		if err := d.Decode(&w); err != nil {
			t.Fatal(err)
		}
	}
	pod := w.Spec.Template.Spec
	if pod.HostPID || pod.HostNetwork {
		t.Errorf("hostPID is %v, hostNetwork is %v", pod.HostPID, pod.HostNetwork)
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Error("the token is mounted that is good for a year")
	}
	var lives []int
	for _, v := range pod.Volumes {
		for _, s := range v.Projected.Sources {
			if seconds := s.ServiceAccountToken.ExpirationSeconds; seconds != 0 {
				lives = append(lives, seconds)
			}
		}
	}
	if !slices.Equal(lives, []int{3600}) {
		t.Errorf("tokens live for %v s", lives)
	}
	for _, c := range pod.Containers {
		s := c.SecurityContext
		if s.Privileged || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem ||
			s.Capabilities.Add != nil || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) || s.SeccompProfile.Type != "RuntimeDefault" {
			t.Errorf("the container's security context is %+v", s)
		}
		if !regexp.MustCompile(`@sha256:[0-9a-f]{64}$`).MatchString(c.Image) {
			t.Errorf("the image %s is not named by its digest", c.Image)
		}
	}
	terms := pod.Affinity.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) == 0 || len(pod.Containers) != 1 {
		t.Fatalf("%d terms of affinity, %d containers", len(terms), len(pod.Containers))
	}
	for _, term := range terms { // one is enough, so each must keep control planes out
		if e := term.MatchExpressions; len(e) != 2 || e[0].Key != "node-role.kubernetes.io/control-plane" || e[0].Operator != "DoesNotExist" {
			t.Errorf("the affinity has the term %+v", e)
		}
	}
}
