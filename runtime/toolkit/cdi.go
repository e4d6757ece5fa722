// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
)

// Stage keeps what containers get the GPUs by: the toolkit's configuration and CDI spec, and links to the device nodes. It comes
// after the partitions, which the spec names and does not follow by itself.
var Stage = converge.Stage{
	Name:  "toolkit",
	About: "configures the container toolkit, keeps its CDI spec current, and links to the device nodes",
	Wants: func(s spec.Spec, _ facts.Facts) ([]converge.Want, error) {
		return append(configWants(s), cdiWants(s)...), nil
	},
	Notes: func(v host.View, s spec.Spec, f facts.Facts) []string {
		notes := append(configNotes(s), cdiNotes(v, s)...)
		if s.Has("runtime") || s.Has("toolkit") {
			notes = append(notes, Faults(v, f)...)
		}
		return notes
	},
}

func cdiWants(s spec.Spec) []converge.Want {
	if !s.Has("runtime") || !s.Runtime.CDI {
		return nil
	}
	wants := []converge.Want{
		ifInstalled(things.Enabled(cdi.Unit, "writes the CDI spec at each boot")),
		ifInstalled(things.Running(cdi.Path, "has the CDI spec written again when the driver or the toolkit is another")),
		cdi.DeviceLinks(),
		cdi.Spec(),
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
		if enabled, _ := things.UnitWords(found); enabled == "" || enabled == "masked" {
			return found, nil
		}
		return to(found)
	}
	return w
}

// pluginUnit is a unit of the machine that runs the device plugin: AKS's managed GPU nodes and Bottlerocket have one.
// Sources: Azure/AgentBaker:parts/linux/cloud-init/artifacts/nvidia-device-plugin.service;
// bottlerocket-os/bottlerocket-core-kit:packages/nvidia-k8s-device-plugin.
func pluginUnit(v host.View) string {
	for _, name := range []string{"nvidia-device-plugin.service", "nvidia-k8s-device-plugin.service"} {
		for _, dir := range []string{"/etc/systemd/system/", "/usr/lib/systemd/system/"} {
			if _, err := v.Stat(dir + name); err == nil {
				return name
			}
		}
	}
	return ""
}

// cdiNotes names specs of others for the same devices.
func cdiNotes(v host.View, s spec.Spec) []string {
	if !s.Has("runtime") || !s.Runtime.CDI || !v.Live() {
		return nil
	}
	others := cdi.ReadOtherSpecs(v)
	notes := others.Notes(v)
	if who := others.Injectors(); len(who) > 0 && s.Runtime.Inject != "cdi" {
		notes = append(notes, fmt.Sprintf(`%s gives containers GPUs by CDI here: inject = "cdi" in [runtime] does without a handler`, strings.Join(who, " and ")))
	}
	if unit := pluginUnit(v); unit != "" && s.Has("sharing") {
		notes = append(notes, unit+" runs the device plugin on this machine: it reads no ConfigMap, so its own options must say what [sharing] says")
	}
	return notes
}
