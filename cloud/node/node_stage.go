// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path"

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
			setsGPULabels := s.Has("node") && s.Node.GPULabels
			return StartupNeeds().And(facts.Needs{
				Driver: setsGPULabels,
				Files:  method.OwnUnits(),
			})
		},
		Notes: nodeNotes,
	}
}

// theJoin is nodeOwner's answer for a kubelet that gpuadm sets up.
const theJoin = "the join"

// nodeOwner names what gives kubelet its labels and taints instead of stage node: gpuadm's join, or
// a cloud's own software, which rewrites kubelet's files at each boot and gets them from stage
// join. It is "" if stage node does.
func nodeOwner(s spec.Spec, f facts.Facts) string {
	switch {
	case method.SetsUpKubelet(s, f), method.SetUpByGpuadm(f):
		return theJoin
	case platform.Writes(f.Kubelet.ConfigOwner):
		return f.Kubelet.ConfigOwner
	}
	return ""
}

// nodeNotes says why the stage has no wants for kubelet.
func nodeNotes(_ host.View, s spec.Spec, f facts.Facts) []string {
	k := f.Kubelet
	owner := nodeOwner(s, f)
	labels, _, err := Registration(s, f)
	switch {
	case !s.Has("node"), owner == theJoin, err != nil:
		return nil
	case owner != "":
		const note = "%[1]s writes kubelet's files again at each boot: labels and taints go through %[1]s or the API"
		return []string{fmt.Sprintf(note, owner)}
	case k.Unit == "":
		return []string{"no kubelet is installed yet that could register with labels and taints"}
	case k.LabelsAt.How == "" && len(labels) > 0:
		return []string{"labels are set by the API once the node has registered: " + k.LabelsAt.Why}
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

	// What kubelet does not register with, stage ready sets through the API later. A label that
	// comes later lets no pod in too early; a taint that comes later does, unless the node has
	// joined already.
	if k.LabelsAt.How == "" {
		labels = nil
	}
	noPlace := kubelet.NoTaints(k)
	if noPlace != "" && len(taints) > 0 && !k.Joined {
		return nil, noPlaceFor(taints[0], noPlace)
	}
	if noPlace != "" {
		taints = nil
	}

	if len(labels) == 0 && len(taints) == 0 {
		return nil, nil
	}

	file := kubelet.FileFor(k, labels, taints)
	wants := things.Folders(path.Dir(file.Name), "holds what kubelet reads")
	wants = append(wants, file.Want(nodeWhy(k, labels, taints)))
	if !k.Joined && !f.Booting { // after its registration kubelet no longer reads labels and taints
		const why = "kubelet reads its flags and its configuration when it starts"
		wants = append(wants, kubelet.Fresh(k, []string{file.Name}, why))
	}
	return wants, nil
}

// noPlaceFor refuses a taint that gpuadm can write into no file that kubelet reads.
func noPlaceFor(t spec.Taint, why string) error {
	return &trouble.Error{
		What: fmt.Sprintf("cannot register the node with the taint %s: %s", t, why),
		Try:  []string{"add it by hand where kubelet reads it, or drop taints from [node] and write startup_taint = \"none\""},
		Err:  noPlaceForTaint,
	}
}

// nodeWhy says what the node registers with, and when.
func nodeWhy(k facts.Kubelet, labels map[string]string, taints []spec.Taint) string {
	why := "the node registers with " + RegistersWith(labels, taints)
	if k.Joined {
		why += "; it has joined already, so this holds when it registers again"
	}
	return why
}
