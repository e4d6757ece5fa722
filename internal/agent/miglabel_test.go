// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/mig"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMIGLabelState: the words of mig-parted's manager, each when it writes them: reconfigure.go, Run.
func TestMIGLabelState(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	for want, tt := range map[string]struct {
		is      partitions
		res     converge.Result
		reboots bool
	}{
		"success":   {partitions{made: true}, converge.Result{}, true},
		"rebooting": {partitions{made: true}, converge.Result{Reboot: "a GPU changes its mode"}, true},
		"failed":    {partitions{}, converge.Result{Reboot: "a GPU changes its mode"}, false}, // of a layout that is not in the file
	} {
		r := &Run{Host: n, Reboots: tt.reboots, Engine: &converge.Engine{Stages: []converge.Stage{mig.Stage}, Spec: spec.Spec{MIG: spec.MIG{File: "/etc/gpuadm/mig.yaml", Layout: "none"}}}}
		if got := r.migState(t.Context(), tt.is, tt.res, nil); got != want {
			t.Errorf("%+v: %s, want %s", tt, got, want)
		}
	}
}
