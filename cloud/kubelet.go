// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Node puts labels and taints where a kubelet that somebody else set up reads them before it registers its node.
func Node() converge.Stage {
	return converge.Stage{
		Name:  "node",
		About: "gives kubelet the labels and taints to register its node with",
		Wants: nodeWants,
		Needs: func(s spec.Spec) facts.Needs {
			return startupNeeds().And(facts.Needs{Driver: s.Has("node") && s.Node.GPULabels, Files: ownUnits()})
		},
		Notes: nodeNotes,
	}
}

// nodeOwner says who else brings labels and taints to the kubelet: the join that sets it up or has, or a cloud's own software,
// whose files are written anew at each boot and which is told by stage join.
func nodeOwner(s spec.Spec, f facts.Facts) string {
	switch k := f.Kubelet; {
	case ownsKubelet(s, f), setUpByUs(f):
		return "the join"
	case slices.Contains([]string{"nodeadm", "aks", "gke"}, k.ConfigOwner):
		return k.ConfigOwner
	}
	return ""
}

// nodeNotes says why nothing is wanted of a kubelet.
func nodeNotes(_ host.View, s spec.Spec, f facts.Facts) []string {
	if !s.Has("node") {
		return nil
	}
	k := f.Kubelet
	labels, _, err := registration(s, f)
	switch owner := nodeOwner(s, f); {
	case err != nil || owner == "the join":
		return nil
	case owner != "":
		return []string{fmt.Sprintf("kubelet's files are %s's, which writes them anew: labels and taints go through it, or through the API", owner)}
	case k.Unit == "":
		return []string{"there is no kubelet here that could register with labels and taints yet"}
	case k.LabelsAt.How == "" && len(labels) > 0:
		return []string{fmt.Sprintf("labels come once the node has registered: %s", k.LabelsAt.Why)}
	}
	return nil
}

func nodeWants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	k := f.Kubelet
	if !s.Has("node") || k.Unit == "" || nodeOwner(s, f) != "" {
		return nil, nil
	}
	labels, taints, err := registration(s, f)
	if err != nil {
		return nil, err
	}
	if k.LabelsAt.How == "" {
		labels = nil // the API takes them later; pods cannot come too early for want of a label
	}
	if k.TaintsAt.How == "" && len(taints) > 0 && !k.Joined {
		return nil, &converge.Trouble{
			What: fmt.Sprintf("cannot register the node with the taint %s: %s", taints[0], k.TaintsAt.Why),
			Try:  []string{"add it there by hand, or drop taints from [node] and write startup_taint = \"none\""},
		}
	}
	if k.TaintsAt.How == "" {
		taints = nil
	}
	files, err := nodeFiles(k, labels, taints)
	if err != nil || len(files) == 0 {
		return nil, err
	}
	return nodeFileWants(f, files), nil
}

// nodeLabelsSay and nodeTaintsSay say in few words what the node registers with.
func nodeLabelsSay(labels map[string]string) string {
	if len(labels) == 1 {
		return "label " + slices.Sorted(maps.Keys(labels))[0]
	}
	return fmt.Sprintf("%d labels", len(labels))
}

func nodeTaintsSay(taints []spec.Taint) string {
	return "taint " + strings.Join(kubeletTaintParts(taints), ", taint ")
}

// nodeWhy says what a file has the node register with, and when that cannot come true any more.
func nodeWhy(k facts.Kubelet, file nodeFile) string {
	why := "the node registers with " + strings.Join(file.brings, ", ")
	if k.Joined {
		why += "; it has joined already, so this holds when it registers anew"
	}
	return why
}

// nodeFileWants wants the files, and kubelet to run with them as long as it has not registered: afterwards they say
// nothing to it, and it is left alone.
func nodeFileWants(f facts.Facts, files []nodeFile) (wants []converge.Want) {
	k := f.Kubelet
	var names []string
	unit := false
	for _, file := range files {
		wants = append(wants, nodeFolders(file.name, wants)...)
		wants = append(wants, file.want(nodeWhy(k, file)))
		names = append(names, file.name)
		unit = unit || file.unit
	}
	if unit {
		wants = append(wants, things.UnitFilesRead("systemd starts units as it has read them", k.Unit))
	}
	if !k.Joined && !f.Booting {
		wants = append(wants, kubeletFresh(k.Unit, names, "kubelet reads its flags and its configuration when it starts"))
	}
	return wants
}

// nodeFolders wants the folder of a file, and those it lies in, each once.
func nodeFolders(name string, have []converge.Want) []converge.Want {
	dir := name[:strings.LastIndexByte(name, '/')]
	return slices.DeleteFunc(things.Folders(dir, "holds what kubelet reads"), func(w converge.Want) bool {
		return slices.ContainsFunc(have, func(o converge.Want) bool { return o.Kind() == w.Kind() && o.Name() == w.Name() })
	})
}
