// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/docker"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// injected wants CDI enabled in the engine, for inject = "cdi": a component in the cluster names
// CDI devices, and gpuadm writes no handler. gpuadm then leaves the configuration alone, its own
// earlier edits included: one of them may be enable_cdi.
// Sources: gpu-operator/cdi.rst of NVIDIA/cloud-native-docs; README of
// https://github.com/NVIDIA/k8s-device-plugin (cdi-cri).
func injected(e facts.Engine) converge.Want {
	look := func(context.Context, host.View) (string, error) {
		if why := withoutCDI(e); why != "" {
			return fmt.Sprintf("cannot have GPUs injected by CDI: %s", why), nil
		}
		return "", nil
	}

	want := things.Check("CDI is on in "+e.Name, look,
		"containers get GPUs by CDI alone, so "+e.Config+" is read and not edited",
		`write inject = "handler" in [runtime], if containers get GPUs by the NVIDIA runtime here`)
	want.Releases = true
	return want
}

// LacksCDI says why the engine of pods gives them no CDI devices; "" if it does, or no engine is
// known.
func LacksCDI(f facts.Facts) string {
	e, err := ForPods(f)
	if err != nil {
		return ""
	}
	return withoutCDI(e)
}

// ReadingSpecs are the engines that give containers CDI devices: that of pods, and Docker.
func ReadingSpecs(f facts.Facts) (engines []facts.Engine) {
	e, err := ForPods(f)
	if err == nil && withoutCDI(e) == "" {
		engines = append(engines, e)
	}
	for _, e := range f.Engines {
		if e.Name == "docker" && e.Binary != "" && docker.HasCDI(e) {
			engines = append(engines, e)
		}
	}

	return engines
}

// withoutCDI says why an engine does not give containers CDI devices; "" if it does.
// Source: prerequisites.md of kubernetes-sigs/dra-driver-nvidia-gpu, which has CRI-O's version;
// Docker has no CRI.
func withoutCDI(e facts.Engine) string {
	switch e.Name {
	case "containerd":
		return containerd.WithoutCDI(e)
	case "crio":
		if engine.IsBefore(e.Version, 1, 27) {
			return fmt.Sprintf("CRI-O %s has no CDI by default: 1.27 is the first", e.Version)
		}
		return ""
	}
	return e.Name + " is not what kubelet runs containers with"
}
