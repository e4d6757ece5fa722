// SPDX-License-Identifier: Apache-2.0

package toolkit

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
)

func cdiWants(s spec.Spec, f facts.Facts) []converge.Want {
	if !s.Has("runtime") || !s.Runtime.CDI {
		return nil
	}

	wants := []converge.Want{
		ifInstalled(things.Enabled(cdi.Unit, "writes the CDI spec at each boot")),
		ifInstalled(things.Running(cdi.Path, "has the CDI spec written again when the driver or the toolkit changes")),
		cdi.DeviceLinks(),
		cdi.Refresh(),
	}
	generated := cdi.Generated()
	current := cdi.Spec()
	if ownDriver(s, f) {
		generated = cdi.GeneratedOfOwnDriver()
		current = cdi.SpecOfOwnDriver()
	}
	if GeneratesCDI(s, f) {
		wants = append(wants, generated)
	}
	wants = append(wants, current)
	for i := range wants {
		wants[i].Section = "runtime"
	}
	return wants
}

// GeneratesCDI says whether gpuadm has the CDI spec generated where the toolkit has no service for
// it: sealed systems do it themselves.
// Sources: generate-cdi-specs.service in packages/nvidia-container-toolkit of
// bottlerocket-os/bottlerocket-core-kit; nvidia-cdi-gen.yaml of siderolabs/extensions.
func GeneratesCDI(s spec.Spec, f facts.Facts) bool {
	return s.Has("runtime") && s.Runtime.CDI && platform.SystemOf(f.OS.ID).ID == ""
}

// ownDriver says whether the spec asks for a driver of the machine's own.
func ownDriver(s spec.Spec, f facts.Facts) bool {
	asked := s.Has("driver") && s.Driver.Version != "" && s.Driver.Owner != "other"
	return asked && f.Modules != nil && f.DriverOwner == nil
}

// ifInstalled leaves a unit alone that is masked or not installed, as before toolkit 1.18.
func ifInstalled(w converge.Want) converge.Want {
	to := w.To
	w.To = func(found converge.State) (converge.State, error) {
		enabled, _ := things.UnitWords(found)
		if enabled == "" || things.MasksUnit(enabled) {
			return found, nil
		}
		return to(found)
	}

	return w
}

// pluginUnit is a unit of the machine that runs the device plugin: AKS's managed GPU nodes and
// Bottlerocket have one.
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

// cdiNotes names other programs' CDI specs and device plugins, and what follows from them.
func cdiNotes(v host.View, s spec.Spec, f facts.Facts, folders []string) []string {
	if !s.Has("runtime") || !s.Runtime.CDI || !v.Live() {
		return nil
	}

	others := cdi.ReadOtherSpecs(v, f.ReadsCDI(v), folders...)
	notes := others.Notes(v)
	injectors := others.Injectors()
	if len(injectors) > 0 && s.Runtime.Inject != "cdi" {
		who := strings.Join(injectors, " and ")
		notes = append(notes, who+` gives containers GPUs by CDI here: inject = "cdi" in [runtime] does without a handler`)
	}
	if unit := pluginUnit(v); unit != "" && s.Has("sharing") {
		notes = append(notes, unit+" runs the device plugin on this machine: it reads no ConfigMap, so its own options must say what [sharing] says")
	}
	return notes
}
