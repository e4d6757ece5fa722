// SPDX-License-Identifier: Apache-2.0

// Package node describes the machine to the cluster: the labels and taints that its node registers
// with (stage node), the taint that keeps pods off (stage guard), and the condition that the GPUs
// are ready (stages gpus and ready). The Node object's parts are things.
package node

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/method"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Stage writes labels and taints where a kubelet that another program set up reads them before it
// registers its node.
func Stage() converge.Stage {
	return converge.Stage{
		Name:  "node",
		About: "gives kubelet the labels and taints to register its node with",
		Wants: nodeWants,
		Needs: func(s spec.Spec) facts.Needs {
			return StartupNeeds().And(facts.Needs{Driver: s.Has("node") && s.Node.GPULabels, Files: method.OwnUnits()})
		},
		Notes: nodeNotes,
	}
}

// nodeOwner names what gives kubelet its labels and taints instead of stage node: gpuadm's join, or
// a cloud's own software, which rewrites kubelet's files at each boot and gets them from stage
// join.
func nodeOwner(s spec.Spec, f facts.Facts) string {
	switch k := f.Kubelet; {
	case method.EKSOwn(s, f), method.SetUpByGpuadm(f):
		return "the join"
	case platform.Writes(k.ConfigOwner):
		return k.ConfigOwner
	}
	return ""
}

// nodeNotes says why the stage has no wants for kubelet.
func nodeNotes(_ host.View, s spec.Spec, f facts.Facts) []string {
	if !s.Has("node") {
		return nil
	}
	k := f.Kubelet
	labels, _, err := Registration(s, f)
	switch owner := nodeOwner(s, f); {
	case err != nil || owner == "the join":
		return nil
	case owner != "":
		return []string{fmt.Sprintf("%[1]s writes kubelet's files again at each boot: labels and taints go through %[1]s or the API", owner)}
	case k.Unit == "":
		return []string{"no kubelet is installed yet that could register with labels and taints"}
	case k.LabelsAt.How == "" && len(labels) > 0:
		return []string{fmt.Sprintf("labels are set by the API once the node has registered: %s", k.LabelsAt.Why)}
	}
	return nil
}

func nodeWants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	k := f.Kubelet
	if !s.Has("node") || k.Unit == "" || nodeOwner(s, f) != "" {
		return nil, nil
	}
	labels, taints, err := Registration(s, f)
	if err != nil {
		return nil, err
	}
	if k.LabelsAt.How == "" {
		labels = nil // they are set by the API later; a missing label lets no pod in too early
	}
	if why := kubelet.NoTaints(k); why != "" && len(taints) > 0 {
		if !k.Joined {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot register the node with the taint %s: %s", taints[0], why),
				Try:  []string{"add it by hand where kubelet reads it, or drop taints from [node] and write startup_taint = \"none\""}, Err: noPlaceForTaint,
			}
		}
		taints = nil
	}
	if len(labels) == 0 && len(taints) == 0 {
		return nil, nil
	}
	file := kubelet.FileFor(k, labels, taints)
	wants := append(things.Folders(path.Dir(file.Name), "holds what kubelet reads"), file.Want(nodeWhy(k, labels, taints)))
	if !k.Joined && !f.Booting { // after its registration kubelet no longer reads labels and taints
		wants = append(wants, kubelet.Fresh(k, []string{file.Name}, "kubelet reads its flags and its configuration when it starts"))
	}
	return wants, nil
}

// RegistersWith returns a short text of the labels and taints that the node registers with.
func RegistersWith(labels map[string]string, taints []spec.Taint) string {
	var says []string
	if len(labels) > 1 {
		says = append(says, fmt.Sprintf("%d labels", len(labels)))
	} else {
		for key := range labels {
			says = append(says, "label "+key)
		}
	}
	for _, t := range taints {
		says = append(says, "taint "+t.String())
	}
	return strings.Join(says, ", ")
}

// nodeWhy says what the node registers with, and when.
func nodeWhy(k facts.Kubelet, labels map[string]string, taints []spec.Taint) string {
	why := "the node registers with " + RegistersWith(labels, taints)
	if k.Joined {
		why += "; it has joined already, so this holds when it registers again"
	}
	return why
}

// OwnKubelet wants a kubelet that gpuadm sets up, with the node's name, labels and taints.
func OwnKubelet(k kubelet.Own, s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	labels, taints, err := Registration(s, f)
	if err != nil {
		return nil, err
	}
	k.Name, k.Labels, k.Taints = method.NodeName(s, f), labels, taints
	return k.Wants(s, f)
}

// Unique leaves out folders that are wanted twice.
func Unique(wants []converge.Want) (list []converge.Want) {
	seen := map[string]bool{}
	for _, w := range wants {
		id := w.Ref().String()
		if !seen[id] {
			list = append(list, w)
		}
		seen[id] = true
	}
	return list
}

// Registration returns all labels and taints that the node must have from its first registration
// on. Kubelet sends them only then: a later registration only renews the built-in labels
// (kubernetes, pkg/kubelet/kubelet_node_status.go, tryRegisterWithAPIServer). Labels that a kubelet
// may not set are not among them; gpuadm sets them through the API after the node has registered.
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
				Try:     []string{"drop one of the two from taints or startup_taint in [node]"}, Err: taintTwice,
			}
		}
	}
	return labels, taints, nil
}
