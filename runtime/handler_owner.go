// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/runtime/containerd"
)

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
	case s.Runtime.Owner == "gpuadm", e.Owner == "aks" && f.Files[facts.AKSProvisioned] != nil && h.Name != containerd.AKSHandler:
	default:
		h.Owner, h.Why = e.Owner, e.Why
	}
	return h, nil
}
