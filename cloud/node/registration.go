// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/sorting"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Registration returns all labels and taints that the node must have from its first registration
// on. Kubelet sends them only then: a later registration only renews the built-in labels
// (kubernetes, pkg/kubelet/kubelet_node_status.go, tryRegisterWithAPIServer). Labels that a kubelet
// may not set are not among them; gpuadm sets them through the API after the node has registered.
func Registration(s spec.Spec, f facts.Facts) (labels map[string]string, taints []spec.Taint, err error) {
	if err := refuseForeign(s); err != nil {
		return nil, nil, err
	}

	discovered, _ := gpuLabels(s, f)
	labels = map[string]string{}
	maps.Copy(labels, discovered)
	maps.Copy(labels, autoscalerLabels(f))
	maps.Copy(labels, s.Node.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return spec.RestrictedLabel(key) })

	taints = slices.Clone(s.Node.Taints)
	startup, _, err := startupTaint(s, f)
	if err != nil {
		return nil, nil, err
	}
	if startup.Key != "" && !slices.Contains(taints, startup) {
		taints = append(taints, startup)
	}
	sorting.By(taints, func(a, b spec.Taint) int {
		return strings.Compare(taintName(a), taintName(b))
	})
	if err := refuseTwice(taints); err != nil {
		return nil, nil, err
	}
	return labels, taints, nil
}

// refuseTwice refuses two taints with one key and effect; the taints are sorted.
func refuseTwice(taints []spec.Taint) error {
	for i := 1; i < len(taints); i++ {
		t, other := taints[i], taints[i-1]
		if !sameTaint(t, other) {
			continue
		}
		return &trouble.Error{
			What:    fmt.Sprintf("cannot register the node with the taint %s: %s is wanted too", t, other),
			Because: []string{"a node has one taint of a key and an effect"},
			Try:     []string{"drop one of the two from taints or startup_taint in [node]"},
			Err:     taintTwice,
		}
	}
	return nil
}

// sameTaint reports whether two taints have one key and effect: a Node has only one of them.
func sameTaint(a, b spec.Taint) bool { return a.Key == b.Key && a.Effect == b.Effect }

// hasTaint reports whether a taint with the key and the effect of another is in a list.
func hasTaint(taints []spec.Taint, t spec.Taint) bool {
	return slices.ContainsFunc(taints, func(other spec.Taint) bool {
		return sameTaint(t, other)
	})
}

// RegistersWith returns a short text of the labels and taints that the node registers with.
func RegistersWith(labels map[string]string, taints []spec.Taint) string {
	var texts []string
	if len(labels) > 1 {
		texts = append(texts, fmt.Sprintf("%d labels", len(labels)))
	} else {
		for key := range labels {
			texts = append(texts, "label "+key)
		}
	}

	for _, t := range taints {
		texts = append(texts, "taint "+t.String())
	}
	return strings.Join(texts, ", ")
}

// OwnKubelet wants a kubelet that gpuadm sets up, with the node's name, labels and taints.
func OwnKubelet(k kubelet.Own, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	labels, taints, err := Registration(s, f)
	if err != nil {
		return nil, err
	}
	k.Name = method.NodeName(s, f)
	k.Labels = labels
	k.Taints = taints
	return k.Wants(s, f)
}
