// SPDX-License-Identifier: Apache-2.0

// Package runtime makes container engines run GPU containers: it chooses the engine, and has the
// package of that engine edit its configuration. Never import the standard package of the same name
// in a file that imports this one.
package runtime

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/crio"
	"github.com/gpuadm/gpuadm/runtime/docker"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Stage points the container engine at the NVIDIA runtime.
var Stage = converge.Stage{
	Name:  "runtime",
	About: "points the container engine at the NVIDIA runtime",
	Wants: wants,
	Needs: needs,
	Notes: notes,
}

func needs(s spec.Spec) facts.Needs {
	return facts.Needs{
		Files: slices.Concat(platform.Done(), platform.Templates(), []string{containerd.K0sFile}),
		Engine: facts.NamedEngine{
			Name:   s.Runtime.Engine,
			Config: s.Runtime.Config,
			Binary: s.Runtime.EngineBinary,
		},
	}
}

// A configurer is the package of this folder that configures an engine.
type configurer struct {
	wants      func(spec.Spec, facts.Facts, facts.Engine) ([]converge.Want, error)
	configured func(facts.Engine) engine.Configured
	loads      func(facts.Engine) things.PrecheckFunc
	verdict    func(context.Context, host.View, facts.Engine) error
	answers    func(context.Context, host.View, facts.Engine, engine.Handler) error
}

// configurers maps the names of engines to the packages that configure them.
func configurers() map[string]configurer {
	return map[string]configurer{
		"containerd": {
			containerd.Wants, containerd.Configured, containerd.Loads, containerd.Verdict, containerd.Answers,
		},
		"crio":   {crio.Wants, crio.Configured, crio.Loads, crio.Verdict, crio.Answers},
		"docker": {docker.Wants, docker.Configured, docker.Loads, docker.Verdict, docker.Answers},
	}
}

// configurerOf returns an engine's configurer; an engine of another name may be a build of
// containerd.
func configurerOf(e facts.Engine) configurer {
	if c, known := configurers()[e.Name]; known {
		return c
	}
	return configurers()["containerd"]
}

func wants(s spec.Spec, f facts.Facts) ([]converge.Want, error) {
	if !s.Has("runtime") {
		return nil, nil
	}

	e, err := chosen(s.Runtime, f)
	if err != nil {
		return nil, err
	}
	if s.Runtime.Inject == "cdi" {
		return []converge.Want{injected(e)}, nil
	}
	if c, known := configurers()[e.Name]; known {
		return c.wants(s, f, e)
	}
	return nil, &trouble.Error{
		What: fmt.Sprintf("cannot configure %s: this gpuadm edits the configuration of containerd, CRI-O and Docker only", e.Name),
		Try:  []string{fmt.Sprintf("nvidia-ctk runtime configure --runtime=%s, and drop [runtime] from node.toml", e.Name)},
	}
}

// notes say which program is missing, which settings of the engine have no effect, and why gpuadm
// configures this engine.
func notes(v host.View, s spec.Spec, f facts.Facts) []string {
	if !s.Has("runtime") {
		return nil
	}
	e, err := chosen(s.Runtime, f)
	if err != nil {
		return nil // the stage says so
	}

	list := missingToolkit(v, s, f, e)
	switch e.Name {
	case "docker":
		list = append(list, docker.Notes(e, f.Kubelet, engine.PlainHandler(s.Runtime))...)
	case "containerd":
		list = append(list, containerd.Notes(s, f, e)...)
	case "crio":
		list = append(list, crio.Configured(e).Unread...)
	}

	list = append(list, nriNote(v, s, f, e)...)
	return append(list, whyChosen(s.Runtime, f, e)...)
}

// missingToolkit notes that the handler's program is not installed and that nothing in the spec
// installs it: [toolkit] installs one program, and an operator may have named another.
func missingToolkit(v host.View, s spec.Spec, f facts.Facts, e facts.Engine) []string {
	wanted := engine.ProgramOf(s.Runtime)
	isStated := wanted != engine.Binary
	comes := s.Has("toolkit") && !isStated
	if comes || s.Runtime.Inject == "cdi" || !v.Live() {
		return nil
	}
	if isStated && facts.Runs(v, wanted) || !isStated && len(f.Programs) > 0 {
		return nil
	}
	handler := containerd.HandlerFor(s, f, e).Name
	if handler == "" {
		return nil
	}

	program := path.Base(wanted)
	install := "; [toolkit] in node.toml installs it"
	switch {
	case strings.HasPrefix(wanted, engine.Binary+"."):
		install = "; the package " + engine.Extensions + " has it"
	case isStated:
		program = wanted
		install = ""
	}

	if engine.HowOf(s.Runtime, e) == platform.Render {
		return []string{fmt.Sprintf("%s is not installed: %s has no handler %s until it is%s, and %s restarts %s then",
			program, e.Owner, handler, install, trouble.Command("apply"), e.Unit)}
	}
	return []string{fmt.Sprintf("%s is not installed: containers of the handler %s do not start until it is%s", program, handler, install)}
}
