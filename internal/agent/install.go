// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/stages"
)

// AddInstall adds the install stage after the stages that make the GPUs ready, so that kubelet
// waits only on a node with ready GPUs, and before the stages that need to know whether kubelet
// waits: else they would add a taint that keeps pods off.
func AddInstall(chosen []converge.Stage, install converge.Stage) []converge.Stage {
	makeReady := stages.BeforeKubelet()
	comesAfter := func(st converge.Stage) bool {
		same := func(other converge.Stage) bool { return other.Name == st.Name }
		return st.Name == "node" || !slices.ContainsFunc(makeReady, same)
	}

	at := slices.IndexFunc(chosen, comesAfter)
	if at < 0 {
		at = len(chosen)
	}
	return slices.Insert(slices.Clone(chosen), at, install)
}

// Installs says whether the install stage was asked for.
func Installs(e *converge.Engine) bool { return indexOfInstall(e) >= 0 }

// InstallFirst moves the install stage, if it was asked for, to the front: else it would come after
// the reboot that needs the installed unit.
func InstallFirst(e *converge.Engine) {
	i := indexOfInstall(e)
	if i > 0 {
		install := e.Stages[i]
		e.Stages = slices.Insert(slices.Delete(e.Stages, i, i+1), 0, install)
	}
}

func indexOfInstall(e *converge.Engine) int {
	return slices.IndexFunc(e.Stages, func(st converge.Stage) bool {
		return st.Name == stages.InstallName
	})
}
