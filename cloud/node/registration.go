// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Registration returns all labels and taints that are to be on the node from its first registration on. A kubelet
// tells them only then: when it registers again it renews no more than the labels it has by itself
// (kubernetes, pkg/kubelet/kubelet_node_status.go, tryRegisterWithAPIServer). Labels that a kubelet may not set are not
// among them; they are set through the API once the node is there.
func Registration(s spec.Spec, f facts.Facts) (labels map[string]string, taints []spec.Taint, err error) {
	if err := refuseForeign(s); err != nil {
		return nil, nil, err
	}
	gpu, _ := gpuLabels(s, f)
	labels = map[string]string{}
	for _, some := range []map[string]string{gpu, autoscalerLabels(f), s.Node.Labels} { // what was written wins
		maps.Copy(labels, some)
	}
	maps.DeleteFunc(labels, func(key, _ string) bool { return spec.RestrictedLabel(key) })
	taints = slices.Clone(s.Node.Taints)
	startup, on, _, err := startupTaint(s, f)
	if err != nil {
		return nil, nil, err
	}
	if on && !slices.Contains(taints, startup) {
		taints = append(taints, startup)
	}
	slices.SortFunc(taints, func(a, b spec.Taint) int { return strings.Compare(a.Key+":"+a.Effect, b.Key+":"+b.Effect) })
	for i := 1; i < len(taints); i++ {
		if t, other := taints[i], taints[i-1]; taintName(t) == taintName(other) {
			return nil, nil, &trouble.Error{
				What:    fmt.Sprintf("cannot register the node with the taint %s: %s is wanted too", t, other),
				Because: []string{"a node has one taint of a key and an effect"},
				Try:     []string{"drop one of the two from taints or startup_taint in [node]"},
			}
		}
	}
	return labels, taints, nil
}
