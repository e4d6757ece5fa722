// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// Toolkit keeps what containers get the GPUs by: the toolkit's configuration and CDI spec, and links to the device nodes. It comes
// after the partitions, which the spec names and does not follow by itself.
var Toolkit = converge.Stage{
	Name:  "toolkit",
	About: "configures the container toolkit, keeps its CDI spec current, and links to the device nodes",
	Wants: func(s spec.Spec, _ facts.Facts) ([]converge.Want, error) {
		return append(configWants(s), cdiWants(s)...), nil
	},
	Notes: func(v host.View, s spec.Spec, _ facts.Facts) []string {
		return append(configNotes(s), cdiNotes(v, s)...)
	},
}

func cdiWants(s spec.Spec) []converge.Want {
	if !s.Has("runtime") || !s.Runtime.CDI {
		return nil
	}
	wants := []converge.Want{
		ifInstalled(things.Enabled(things.CDIUnit, "writes the CDI spec at each boot")),
		ifInstalled(things.Running(things.CDIPath, "has the CDI spec written again when the driver or the toolkit is another")),
		things.DeviceLinks(),
	}
	if !s.MIG.Asked() { // else stage mig has it current, so that it follows an undo of partitions too
		wants = append(wants, things.CDISpec())
	}
	for i := range wants {
		wants[i].Section = "runtime"
	}
	return wants
}

// ifInstalled leaves a unit alone that is not installed, as before toolkit 1.18, or that is masked.
func ifInstalled(w converge.Want) converge.Want {
	to := w.To
	w.To = func(found converge.State) (converge.State, error) {
		if found == "" || len(found) > 6 && found[:6] == "masked" {
			return found, nil
		}
		return to(found)
	}
	return w
}

// cdiNotes names specs of others for the same devices.
func cdiNotes(v host.View, s spec.Spec) []string {
	if !s.Has("runtime") || !s.Runtime.CDI || !v.Live() {
		return nil
	}
	return things.ForeignCDI(v)
}
