// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"os"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// A ctkInput is a configuration as the world has it, which gpuadm and nvidia-ctk both edit.
type ctkInput struct {
	name, version string
	files         []facts.File // in the engine's order; none: the machine has no file
	ownFile       bool         // nvidia-ctk edits crio.conf itself: its --drop-in-config= is empty
}

// dockerInputs are files of Docker 26.1, which reads features.cdi.
func dockerInputs(t *testing.T) []ctkInput {
	all := []ctkInput{
		{name: "missing"}, // test/hosts/debian13-docker.txtar
		recordedInput(t, "docker-only"),
	}
	inputs := [][2]string{
		// dockerd takes a file without a byte: getConflictFreeConfiguration in
		// daemon/config/config.go of https://github.com/moby/moby.
		{"empty file", ""},
		// integration/container/cdi_test.go of https://github.com/moby/moby: "CDI explicitly
		// disabled".
		{"CDI off", `{"features": {"cdi": false}}`},
	}
	for _, f := range must.Get(txtar.ParseFile("testdata/ctk/docker.txtar"))(t).Files {
		inputs = append(inputs, [2]string{f.Name, string(f.Data)})
	}
	for _, c := range inputs {
		all = append(all, ctkInput{
			name:  c[0],
			files: []facts.File{{Path: ctkDaemonJSON, Data: []byte(c[1])}},
		})
	}

	for i := range all {
		all[i].version = "26.1.5"
	}
	return all
}

// crioInputs are files of CRI-O.
func crioInputs(t *testing.T) []ctkInput {
	read := func(name string) string {
		data := must.Get(os.ReadFile("testdata/ctk/" + name))(t)
		return string(data)
	}
	// An excerpt of roles/container-engine/cri-o/templates/crio.conf.j2 of
	// https://github.com/kubernetes-sigs/kubespray, filled in with crun as the default.
	kubespray := crioFiles("/etc/crio/crio.conf", read("kubespray-crio.conf"))
	return []ctkInput{
		{name: "missing 1.33", version: "1.33.6"},
		recordedInput(t, "rocky9-crio"),
		recordedInput(t, "rocky9-crio125"),
		// templates/master/01-master-container-runtime/_base/files/crio.yaml of
		// https://github.com/openshift/machine-config-operator, without what depends on the
		// cluster.
		{name: "OpenShift", version: "1.33.6", files: crioFiles(crioFolder+"/00-default", read("openshift-00-default"))},
		{name: "Kubespray", version: "1.33.6", files: kubespray},
		{name: "Kubespray, own file", version: "1.33.6", files: kubespray, ownFile: true},
		// contrib/bundle/10-crun.conf of https://github.com/cri-o/cri-o.
		{name: "bundle's crun", version: "1.28.4", files: crioFiles(crioFolder+"/10-crun.conf",
			"[crio.runtime]\ndefault_runtime = \"crun\"\n\n[crio.runtime.runtimes.crun]\n")},
	}
}

// recordedInput is the engine of a recorded machine that gpuadm configures.
func recordedInput(t *testing.T, name string) ctkInput {
	t.Helper()
	archive := must.Get(os.ReadFile("../../test/hosts/" + name + ".txtar"))(t)
	n := must.Get(simhost.New(archive))(t)
	f := must.Get(facts.Gather(t.Context(), n.View(), facts.Needs{}))(t)
	for _, e := range f.Engines {
		if e.Name != "containerd" {
			return ctkInput{name: name, version: e.Version, files: e.Files}
		}
	}

	t.Fatalf("%s has no such engine", name)
	return ctkInput{}
}
