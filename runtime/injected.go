// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// injected wants CDI on in the engine, where something in the cluster names CDI devices and no handler is wanted. Its configuration
// stays, also what gpuadm wrote into it earlier: its cdi key may be ours.
// Sources: gpu-operator/cdi.rst of NVIDIA/cloud-native-docs; README of https://github.com/NVIDIA/k8s-device-plugin (cdi-cri).
func injected(e facts.Engine) converge.Want {
	look := func(context.Context, host.View) (string, error) {
		if why := withoutCDI(e); why != "" {
			return fmt.Sprintf("cannot have GPUs injected by CDI: %s", why), nil
		}
		return "", nil
	}
	w := things.Check("CDI is on in "+e.Name, look, "containers get GPUs by CDI alone, so "+e.Config+" is read and not edited",
		`write inject = "handler" in [runtime], if containers get GPUs by the NVIDIA runtime here`)
	w.Releases = true
	return w
}

// withoutCDI says why an engine does not give containers CDI devices; "" if it does.
// Source: prerequisites.md of kubernetes-sigs/dra-driver-nvidia-gpu, which has CRI-O's version; Docker has no CRI.
func withoutCDI(e facts.Engine) string {
	major, minor, known := engine.ParseVersion(e.Version)
	switch {
	case e.Name == "containerd":
		return containerd.WithoutCDI(e)
	case e.Name != "crio":
		return e.Name + " is not what kubelet runs containers with"
	case known && (major < 1 || major == 1 && minor < 27):
		return fmt.Sprintf("CRI-O %s has no CDI by default: 1.27 is the first", e.Version)
	}
	return ""
}

// HandlerOf is the handler of the engine that kubelet uses, and who else writes it.
type HandlerOf struct {
	Engine     facts.Engine
	Name       string // "" where no handler is needed
	Owner, Why string // "" where the stage edits the configuration
}

// HandlerOwner says who writes the handler.
func HandlerOwner(s spec.Spec, f facts.Facts) (HandlerOf, error) {
	s.Runtime.Engine, s.Runtime.Handler = cmp.Or(s.Runtime.Engine, "auto"), cmp.Or(s.Runtime.Handler, "auto")
	e, err := chosen(s.Runtime, f)
	if err != nil {
		return HandlerOf{}, err
	}
	h := HandlerOf{Engine: e, Name: containerd.HandlerFor(s, f, e).Name}
	switch {
	case s.Runtime.Inject == "cdi":
		h.Name = ""
	case s.Runtime.Owner == "other" && e.Owner == "":
		h.Owner, h.Why = "another program", `owner = "other" in [runtime]`
	case e.Owner == "k3s" || e.Owner == "rke2":
		h.Owner, h.Why = e.Owner, e.Why
	case s.Runtime.Owner == "gpuadm", e.Owner == "k0s", e.Owner == "aks" && f.Files[facts.AKSProvisioned] != nil && h.Name != containerd.AKSHandler:
	default:
		h.Owner, h.Why = e.Owner, e.Why
	}
	return h, nil
}
