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
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if err := registrationLabel(key, labels[key]); err != nil {
			return nil, nil, err
		}
	}
	taints = slices.Clone(s.Node.Taints)
	startup, on, _, err := startupTaint(s, f)
	if err != nil {
		return nil, nil, err
	}
	if on && !slices.Contains(taints, startup) {
		taints = append(taints, startup)
	}
	slices.SortFunc(taints, func(a, b spec.Taint) int { return strings.Compare(a.Key+":"+a.Effect, b.Key+":"+b.Effect) })
	return labels, taints, registrationTaints(taints)
}

// registrationLabel refuses what kubelet would not start with: a name or a value that Kubernetes does not take.
func registrationLabel(key, value string) error {
	switch {
	case !spec.IsLabelKey(key):
		return registrationRefused("label "+key, "kubelet does not start with a key like this", "name it as Kubernetes takes it: example.com/name")
	case !spec.IsLabelValue(value):
		return registrationRefused("label "+key, "its value is none that Kubernetes takes",
			"give it at most 63 letters and digits, with -, _ and . inside")
	}
	return nil
}

// registrationTaints refuses taints that the API server would refuse with the node: then it would never register.
// Source: kubernetes, pkg/apis/core/validation/validation.go, validateNodeTaints.
func registrationTaints(taints []spec.Taint) error {
	for i, t := range taints {
		if !slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, t.Effect) {
			return registrationRefused("taint "+t.String(), fmt.Sprintf("Kubernetes knows no effect %q", t.Effect),
				"write NoSchedule, PreferNoSchedule or NoExecute")
		}
		if err := registrationLabel(t.Key, t.Value); err != nil {
			return registrationRefused("taint "+t.String(), "its key or its value is none that Kubernetes takes", "write it as example.com/name=value:"+t.Effect)
		}
		if i > 0 && taints[i-1].Key == t.Key && taints[i-1].Effect == t.Effect {
			return registrationRefused("taint "+t.String(), fmt.Sprintf("%s is wanted too, and a node has one taint of a key and an effect", taints[i-1]),
				"drop one of the two from taints or startup_taint in [node]")
		}
	}
	return nil
}

func registrationRefused(what, because, try string) error {
	return &trouble.Error{What: fmt.Sprintf("cannot register the node with the %s: %s", what, because), Try: []string{try}}
}
