// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// HandlerFor is the handler that the spec asks for on this machine. Its name is "" where the
// machine needs none.
func HandlerFor(s spec.Spec, f facts.Facts, e facts.Engine) engine.Handler {
	h := engine.Handler{
		Name:      s.Runtime.Handler,
		Binary:    engine.ProgramOf(s.Runtime),
		Default:   s.Runtime.SetAsDefault,
		CDI:       s.Runtime.CDI,
		Overrides: s.Runtime.CDIStated,
		Programs:  slices.Clone(f.Programs),
		Systemd:   f.Kubelet.CgroupDriver == "systemd",
	}

	if h.Binary != engine.Binary {
		h.Programs = []string{h.Binary} // the spec says which: another one is wrong
		return named(h, s, f, e)
	}

	hasPackage := s.Has("toolkit") || slices.Contains(f.Programs, engine.Binary)
	if i := slices.IndexFunc(f.Programs, facts.OfOperator); i >= 0 && !hasPackage {
		h.Binary = f.Programs[i]
	}
	return named(h, s, f, e)
}

// named gives a handler the name that "auto" means.
func named(h engine.Handler, s spec.Spec, f facts.Facts, e facts.Engine) engine.Handler {
	if h.Name == "auto" {
		h.Name = strategyOf(s, e).handler(e, f.Programs)
	}
	return h
}

func handlerNvidia(facts.Engine, []string) string { return "nvidia" }
func handlerNone(facts.Engine, []string) string   { return "" }

// handlerFromFile is the name of the owner's entry that runs an installed NVIDIA runtime: AKS calls
// it nvidia-container-runtime, and makes it the default (Azure/AgentBaker, pkg/agent/baker.go and
// aks-node-controller/parser/templates/containerd.toml.gtpl), but for images for GB200, where it is
// nvidia (the same, parts/linux/cloud-init/artifacts/ubuntu/gb/containerd-nvidia.toml).
func handlerFromFile(e facts.Engine, programs []string) string {
	c, err := readEngine(e)
	if err != nil {
		return "nvidia"
	}

	names := []string{c.defaultName(), "nvidia"}
	names = append(names, slices.Sorted(maps.Keys(c.runtimes()))...)
	for _, name := range names {
		if slices.Contains(programs, programOf(c.entry(name))) {
			return name
		}
	}

	return "nvidia"
}

// handlerOfPlatform is the platform's own handler, if its file has the entry and its program is
// installed. Which handler is the default does not matter: it may be gpuadm's, or another one.
func handlerOfPlatform(e facts.Engine, programs []string) string {
	own := platform.EngineOf(e.Owner).Handler
	c, err := readEngine(e)
	if err == nil && slices.Contains(programs, programOf(c.entry(own))) {
		return own
	}
	return "nvidia"
}

// programOf is the program that an entry runs, "" if it does not say.
func programOf(entry map[string]any) string {
	return cmp.Or(toml.String(toml.Sub(entry, "options"), "BinaryName"), toml.String(entry, "runtime_engine"))
}

// missing says what an engine's configuration lacks of a handler, "" if nothing.
func missing(e facts.Engine, h engine.Handler) string {
	c, err := readEngine(e)
	if err != nil {
		return err.Error()
	}
	return c.missing(h)
}

// missing says what the tree lacks of a handler, "" if nothing.
func (c *criTree) missing(h engine.Handler) string {
	config := c.files[0].path
	entry := c.entry(h.Name)
	if entry == nil {
		others := strings.Join(slices.Sorted(maps.Keys(c.runtimes())), ", ")
		return fmt.Sprintf("%s has no such handler, only %s", config, cmp.Or(others, "the built-in runc"))
	}

	program := programOf(entry)
	switch {
	case program == "":
		return fmt.Sprintf("in %s it names no program, so it runs runc", config)
	case !slices.Contains(h.Programs, program):
		return fmt.Sprintf("in %s it runs %s, which is not there or is not an NVIDIA runtime", config, program)
	case h.Default && c.defaultName() != h.Name:
		return fmt.Sprintf("the default in %s is %s", config, c.defaultName())
	case h.CDI && h.Overrides && len(c.cdiOps(c.files[0], h)) > 0:
		return fmt.Sprintf("CDI is off in %s", c.cdiFile())
	}

	return ""
}

// asDefault is engine.DefaultRuns for containerd: an entry of the owner's may run another program.
func asDefault(s spec.Spec, f facts.Facts, c *criTree, h engine.Handler) (engine.Handler, []converge.Want) {
	program := programOf(toml.Sub(c.runtimes(), h.Name))
	if !h.Runs(program) {
		program = h.Binary
	}
	return engine.DefaultRuns(s, f, h, program, c.missing(h) != "")
}
