// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"

	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

func cdiChecks() []Check {
	return []Check{
		{
			Code: "CDI-001", Title: "the CDI spec is not what the driver has",
			Reads:   "the spec of the toolkit's service, and the driver's GPUs and partitions",
			Meaning: "containers that ask for a device by CDI do not start, or start without it",
			Fix:     "have NVIDIA's Container Toolkit write the spec again", Command: trouble.Command("repair CDI-001"), Interrupts: "nothing",
			Sources: []string{"https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1828"},
			Find:    oldSpec,
		},
		{
			Code: "CDI-002", Title: "a CDI spec that nothing keeps current names files that are gone",
			Reads:   "the specs for nvidia.com/gpu in /etc/cdi and /var/run/cdi, and the files that they mount",
			Meaning: "containers that get a device by it do not start",
			Fix:     "remove the file, or write it again with nvidia-ctk cdi generate", Interrupts: "nothing",
			Sources: []string{"https://github.com/NVIDIA/NemoClaw/pull/4733", "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"},
			Find:    func(m *Machine) []Finding { return foreign(m, false) },
		},
		{
			Code: "CDI-003", Title: "two CDI specs name the same devices",
			Reads:   "the specs for nvidia.com/gpu in the folder that the toolkit's service writes to",
			Meaning: "a device that two files of one folder name counts for neither, so that containers do not get it",
			Fix:     "remove the file that nothing keeps current", Interrupts: "nothing",
			Sources: []string{"https://github.com/cncf-tags/container-device-interface, pkg/cdi/cache.go", "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html"},
			Find:    func(m *Machine) []Finding { return foreign(m, true) },
		},
	}
}

func oldSpec(m *Machine) []Finding {
	state, err := things.CDISpec().Look(m.ctx, m.View)
	problem := things.CDIProblem(state)
	if err != nil || problem == "" {
		return nil
	}
	return []Finding{{Object: things.CDIOutput(m.View), What: problem}}
}

func foreign(m *Machine, conflicts bool) (list []Finding) {
	for _, s := range things.ReadOtherSpecs(m.View).Foreign(m.View) {
		switch {
		case conflicts && s.Conflicts:
			list = append(list, Finding{Object: s.File, What: fmt.Sprintf("%s and %s are both specs for %s", s.File, things.CDIOutput(m.View), things.CDIKind), Command: "sudo rm " + s.File})
		case !conflicts && !s.Conflicts && s.Problem != "":
			list = append(list, Finding{Object: s.File, What: s.File + ": " + s.Problem, Command: "sudo nvidia-ctk cdi generate --output=" + s.File})
		}
	}
	return list
}
