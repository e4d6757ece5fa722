// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"

	"github.com/gpuadm/gpuadm/internal/things/cdi"
)

func oldSpec(m *Machine) []Finding {
	state, err := cdi.Spec().Look(m.ctx, m.View)
	problem := cdi.Problem(state)
	if err != nil || problem == "" {
		return nil
	}
	return []Finding{{Object: cdi.Output(m.View), What: problem}}
}

// otherSpecFaults finds specs with a fault that other tools than gpuadm have written.
func otherSpecFaults(m *Machine) (found []Finding) {
	for _, spec := range cdi.ReadOtherSpecs(m.View, m.Facts().ReadsCDI(m.View)).Foreign(m.View) {
		if spec.Conflicts || spec.Problem == "" {
			continue
		}
		command := "sudo nvidia-ctk cdi generate --output=" + spec.File
		if spec.Kind != cdi.Kind {
			command = "sudo nvidia-ctk cdi list"
		}
		found = append(found, Finding{
			Object:  spec.File,
			What:    spec.File + ": " + spec.Problem,
			Command: command,
		})
	}
	return found
}

// conflictingSpecs finds specs of other tools for the devices of gpuadm's spec.
func conflictingSpecs(m *Machine) (found []Finding) {
	for _, spec := range cdi.ReadOtherSpecs(m.View, m.Facts().ReadsCDI(m.View)).Foreign(m.View) {
		if !spec.Conflicts {
			continue
		}
		found = append(found, Finding{
			Object:  spec.File,
			What:    fmt.Sprintf("%s and %s are both specs for %s", spec.File, cdi.Output(m.View), cdi.Kind),
			Command: "sudo rm " + spec.File,
		})
	}
	return found
}
