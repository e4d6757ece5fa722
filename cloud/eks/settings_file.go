// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// settingsText returns gpuadm's file for nodeadm; nil if nodeadm needs none.
func settingsText(
	s spec.Spec, f facts.Facts, labels map[string]string, taints []spec.Taint, resolved instance.UserKubelet,
) ([]byte, error) {
	handler := s.Runtime.Handler
	writesHandler := s.Has("runtime") && s.Runtime.Owner != "gpuadm"
	if writesHandler && !slices.Contains([]string{"", "auto", "nvidia"}, handler) {
		const text = "cannot give containerd the handler %s: nodeadm writes its configuration at each boot, with the handler nvidia"
		return nil, &trouble.Error{
			What: fmt.Sprintf(text, handler),
			Try: []string{
				"write handler = \"nvidia\" in [runtime]",
				"or add another handler in spec.containerd.config of the user data",
			},
		}
	}

	all, fromUserData := mergedTaints(f.Files[nodeadm().Settings], resolved, taints)
	addsTaints := len(all) > fromUserData
	if len(labels) == 0 && !addsTaints {
		return nil, nil
	}

	var b strings.Builder
	b.WriteString(kubelet.Written)
	fmt.Fprintf(&b, "apiVersion: %s\nkind: %s\n", instance.NodeConfigVersion, instance.NodeConfigKind)
	b.WriteString("spec:\n  kubelet:\n")
	if len(labels) > 0 {
		flag := "--node-labels=" + strings.Join(kubelet.Pairs(labels), ",")
		b.WriteString("    flags:\n    - " + quotedYAML(flag) + "\n")
	}
	if addsTaints {
		writeTaints(&b, all, fromUserData)
	}
	return []byte(b.String()), nil
}

// writeTaints writes a list of taints. The first fromUserData of them come from the user data.
func writeTaints(b *strings.Builder, all []spec.Taint, fromUserData int) {
	b.WriteString("    config:\n")
	b.WriteString("      registerWithTaints: # a list in place of the user data's, so that is repeated\n")
	for i, t := range all {
		source := "the user data"
		if i >= fromUserData {
			source = fromNode
		}
		fmt.Fprintf(b, "      - {key: %s, value: %s, effect: %s} # %s\n",
			quotedYAML(t.Key), quotedYAML(t.Value), quotedYAML(t.Effect), source)
	}
}

// quotedYAML quotes a text as in JSON, which YAML reads as well.
func quotedYAML(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		return `""` // never: json.Marshal takes any string
	}
	return string(out)
}

// fromNode marks, in gpuadm's file, the taints of node.toml, so that gpuadm can remove them later.
const fromNode = "node.toml"

// mergedTaints returns the list that the node must register with, and how many of its first taints
// come from the user data. nodeadm replaces lists and does not merge them, so the list includes
// these: without Karpenter's karpenter.sh/unregistered, pods would start before Karpenter knows the
// node. settings is gpuadm's file: its marked taints are in the resolved list too.
// Source: https://github.com/awslabs/amazon-eks-ami, nodeadm/internal/api/merge.go.
func mergedTaints(
	settings []byte, resolved instance.UserKubelet, taints []spec.Taint,
) (all []spec.Taint, fromUserData int) {
	marked := markedTaints(settings)
	for _, t := range resolved.Config.RegisterWithTaints {
		taint := spec.Taint(t)
		known := slices.Contains(marked, taint) || slices.Contains(all, taint)
		if taint.Key != "" && !known {
			all = append(all, taint)
		}
	}

	fromUserData = len(all)

	for _, t := range taints {
		sameTaint := func(other spec.Taint) bool {
			return other.Key == t.Key && other.Effect == t.Effect
		}
		if !slices.ContainsFunc(all, sameTaint) {
			all = append(all, t)
		}
	}

	return all, fromUserData
}

// markedTaints returns the taints in gpuadm's file that come from node.toml.
func markedTaints(settings []byte) (marked []spec.Taint) {
	var doc struct {
		Spec struct {
			Kubelet struct {
				Config struct {
					RegisterWithTaints []yaml.Node `yaml:"registerWithTaints"`
				}
			}
		}
	}
	if yaml.Unmarshal(settings, &doc) != nil {
		return nil
	}

	for _, node := range doc.Spec.Kubelet.Config.RegisterWithTaints {
		var t struct{ Key, Value, Effect string }
		comment := node.LineComment
		for _, c := range node.Content {
			comment += c.LineComment
		}
		if strings.Contains(comment, fromNode) && node.Decode(&t) == nil {
			marked = append(marked, spec.Taint(t))
		}
	}

	return marked
}
