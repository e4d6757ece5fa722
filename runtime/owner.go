// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// HandlerOf is the handler of the engine that kubelet uses, and which other program writes it.
type HandlerOf struct {
	Engine facts.Engine
	Name   string // "" where no handler is needed
	Owner  string // the program that writes the handler; "" where the stage edits the configuration
	Why    string // how gpuadm knows the owner
}

// HandlerOwner says which program writes the handler. With an error it returns the engine too, if
// there is one of which gpuadm cannot tell that kubelet uses it.
func HandlerOwner(s spec.Spec, f facts.Facts) (HandlerOf, error) {
	s.Runtime.Engine = cmp.Or(s.Runtime.Engine, "auto")
	s.Runtime.Handler = cmp.Or(s.Runtime.Handler, "auto")
	e, err := chosen(s.Runtime, f)
	if err != nil {
		return HandlerOf{Engine: e}, err
	}

	h := HandlerOf{Engine: e, Name: containerd.HandlerFor(s, f, e).Name}
	switch {
	case s.Runtime.Inject == "cdi":
		h.Name = ""
	case s.Runtime.Owner == "other" && e.Owner == "":
		h.Owner = "another program"
		h.Why = `owner = "other" in [runtime]`
	case !editable(s, f, e, h.Name):
		h.Owner = e.Owner
		h.Why = e.Why
	}

	return h, nil
}

// editable says whether gpuadm writes the handler into a configuration that has an owner.
func editable(s spec.Spec, f facts.Facts, e facts.Engine, handler string) bool {
	how := engine.HowOf(s.Runtime, e)
	if how == platform.After && handler == platform.EngineOf(e.Owner).Handler {
		return false
	}
	return how == platform.Folder || engine.MayEdit(s.Runtime, f, e)
}

// FileOwner is the program that writes one of the files that engines read, a drop-in for example,
// and how gpuadm knows it; "" where no sign names one.
func FileOwner(f facts.Facts, name string) (owner, why string) {
	for _, e := range f.Engines {
		for _, file := range e.Files {
			if file.Path != name {
				continue
			}
			i := slices.IndexFunc(f.Programs, func(program string) bool {
				return facts.OfOperator(program) && bytes.Contains(file.Data, []byte(program))
			})
			if i >= 0 {
				return facts.GPUOperator, name + " names " + f.Programs[i]
			}
			if bytes.Contains(file.Data, []byte(facts.RuntimeOfOperator)) { // which is not there any more
				return facts.GPUOperator, name + " names " + facts.RuntimeOfOperator
			}
		}
	}
	return "", ""
}

// NeedsHandler says whether containers get the GPUs by a handler on this machine. With GKE's device
// plugin they need none.
func NeedsHandler(f facts.Facts) bool {
	h, err := HandlerOwner(spec.Spec{}, f)
	return err == nil && h.Name != ""
}
