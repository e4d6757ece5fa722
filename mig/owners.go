// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
)

// withOwners adds the pods to which kubelet has assigned the GPU, or an instance that will be destroyed, and that have no process yet:
// a pod whose image is still being pulled has none.
func withOwners(users []user, g host.GPU, steps []Step, pods []devices.PodDevice) []user {
	mode := changesMode(steps)
	for _, p := range pods {
		of := ""
		if mode && p.Device == g.UUID {
			of = fmt.Sprintf("GPU %d", g.Index)
		}
		for i, in := range g.Instances {
			if slices.ContainsFunc(in.Compute, func(c host.ComputeInstance) bool { return c.UUID == p.Device }) && (mode || goes(g, i, steps)) {
				of = fmt.Sprintf("%s of GPU %d", partOf(g, i), g.Index)
			}
		}
		if of != "" && p.Device != "" && !slices.ContainsFunc(users, func(u user) bool { return u.Pod == p.Pod }) {
			users = append(users, user{devices.Holder{Pod: p.Pod}, fmt.Sprintf("pod %s has %s", p.Pod, of)})
		}
	}
	return users
}

// partOf is an instance of a GPU as its state writes it.
func partOf(g host.GPU, i int) Part {
	return StateOf(host.GPU{MIG: true, Mode: true, Pending: true, Profiles: g.Profiles, Instances: g.Instances[i : i+1]}).Parts[0]
}

// goes reports whether the steps destroy an instance of a GPU, or compute instances in it.
func goes(g host.GPU, i int, steps []Step) bool {
	part := partOf(g, i)
	return slices.ContainsFunc(steps, func(s Step) bool {
		return (s.Do == DestroyInstance || s.Do == DestroyCompute) && s.At.Start == part.Start && s.Name == part.Profile
	})
}
