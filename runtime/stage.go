// SPDX-License-Identifier: Apache-2.0

// Package runtime makes container engines run GPU containers: it chooses the engine, and has the
// package of that engine edit its configuration. Never import the standard package of the same name
// beside it.
package runtime

import (
	"context"
	"errors"
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
	Needs: func(s spec.Spec) facts.Needs {
		return facts.Needs{
			Files:  append(platform.Done(), containerd.OnK0s),
			Engine: facts.Stated{Name: s.Runtime.Engine, Config: s.Runtime.Config, Binary: s.Runtime.EngineBinary},
		}
	},
	Notes: notes,
}

// A configurer is the package of this folder that configures an engine.
type configurer struct {
	wants      func(spec.Spec, facts.Facts, facts.Engine) ([]converge.Want, error)
	configured func(facts.Engine) engine.Configured
	loads      func(facts.Engine) things.PrecheckFunc
	answers    func(context.Context, host.View, facts.Engine, engine.Handler) error
}

// configurers are those by the engine's name.
func configurers() map[string]configurer {
	return map[string]configurer{
		"containerd": {containerd.Wants, containerd.Configured, containerd.Loads, containerd.Answers},
		"crio":       {crio.Wants, crio.Configured, crio.Loads, crio.Answers},
		"docker":     {docker.Wants, docker.Configured, docker.Loads, docker.Answers},
	}
}

// configurerOf is an engine's; an engine of another name may be a build of containerd.
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

// chosen returns the container engine to configure: the spec's, if it names one; else kubelet's;
// else the first one found.
func chosen(r spec.Runtime, f facts.Facts) (facts.Engine, error) {
	if r.Config != "" {
		return stated(r, f)
	}
	engines, gone := startable(f.Engines)
	var found []string
	pick := -1
	for i, e := range engines {
		found = append(found, e.Name)
		switch {
		case r.Engine != "auto" && e.Name != r.Engine, r.Engine == "auto" && f.Kubelet.Endpoint == "" && onlyDockers(e, engines):
		case pick < 0, f.Kubelet.Uses(e):
			pick = i
		}
	}
	if pick < 0 {
		t := &trouble.Error{What: "cannot configure a container engine: none is installed", Because: gone, Try: []string{"install containerd first"}}
		if r.Engine != "auto" {
			t.What = fmt.Sprintf("cannot configure %s: it is not installed", r.Engine)
		}
		if len(found) > 0 {
			t.Because = append([]string{"installed: " + strings.Join(found, ", ")}, gone...)
			t.Try = []string{fmt.Sprintf("write engine = %q in [runtime], or install %s first", found[0], r.Engine)}
		}
		return facts.Engine{}, t
	}
	e := engines[pick]
	if k := f.Kubelet; r.Engine == "auto" && k.Endpoint == "" && k.Unit != "" && k.Args == nil && len(others(e, f.Engines)) > 0 {
		return e, &trouble.Error{
			What: fmt.Sprintf("cannot tell which container engine kubelet uses: %s starts it by another program, and %s and %s are here", k.Unit, engine.UnitOf(e), strings.Join(others(e, f.Engines), " and ")),
			Try:  []string{"start " + k.Unit + ": gpuadm asks the kubelet that runs", fmt.Sprintf("or write engine = %q into [runtime]", e.Name)},
		}
	}
	if k := f.Kubelet; r.Engine == "auto" && k.Endpoint != "" && !k.Uses(e) {
		return e, unknownEndpoint(k.Endpoint, engines, gone)
	}
	if e.Wrapper != "" {
		return e, &trouble.Error{
			What: fmt.Sprintf("cannot tell which configuration %s reads: %s starts it with %s", e.Name, engine.UnitOf(e), e.Wrapper),
			Try: []string{
				fmt.Sprintf("have ExecStart= in %s start %s itself, with absolute names in its options", engine.UnitOf(e), e.Name),
				fmt.Sprintf("or, if it reads %s, write config = %q into [runtime]", e.Config, e.Config),
			},
		}
	}
	return e, nil
}

// stated is the engine that reads the file that the spec names.
func stated(r spec.Runtime, f facts.Facts) (facts.Engine, error) {
	i := slices.IndexFunc(f.Engines, func(e facts.Engine) bool {
		return e.Config == r.Config && (r.Engine == "auto" || r.Engine == e.Name) && (e.Unit != "" || e.Binary != "") && !isGone(e)
	})
	if i < 0 {
		return facts.Engine{}, &trouble.Error{
			What: fmt.Sprintf("cannot edit %s: no process and no unit is known to read it", r.Config),
			Try: []string{
				`write engine_binary = "PROGRAM" into [runtime]: the absolute path of the program that reads it, which a unit starts`,
				"or drop config: gpuadm edits what kubelet's engine reads",
			},
		}
	}
	return f.Engines[i], nil
}

// isGone says whether an engine's unit is here, and the program that it starts is not: systemd
// cannot start it. Distributions unpack theirs.
func isGone(e facts.Engine) bool {
	return e.Binary == "" && e.Wrapper == "" && e.Unit == e.Name+".service"
}

// startable are the engines, but for those without a program, which gone names.
func startable(all []facts.Engine) (engines []facts.Engine, gone []string) {
	for _, e := range all {
		if isGone(e) {
			gone = append(gone, fmt.Sprintf("the program of %s is not there", e.Unit))
		} else {
			engines = append(engines, e)
		}
	}
	return engines, gone
}

// onlyDockers says whether this containerd serves Docker alone: Docker is installed, and
// containerd's CRI plugin is disabled, as in Docker's package. Then Kubernetes cannot use it, and
// its configuration does not matter to Docker's containers.
func onlyDockers(e facts.Engine, all []facts.Engine) bool {
	if e.Name != "containerd" || !slices.ContainsFunc(all, func(o facts.Engine) bool { return o.Name == "docker" && o.Binary != "" }) {
		return false
	}
	return errors.Is(containerd.Configured(e).Unreadable, engine.NoCRI)
}

// others are the units of the engines that kubelet could use, but for one.
func others(e facts.Engine, all []facts.Engine) (units []string) {
	for _, o := range all {
		unit := engine.UnitOf(o)
		if o.Unit+o.Binary != "" && !isGone(o) && (o.Name != "docker" || o.CRI != "") && !onlyDockers(o, all) && unit != engine.UnitOf(e) && !slices.Contains(units, unit) {
			units = append(units, unit)
		}
	}
	return units
}

// whyChosen says why it is this one of several engines; "" if there is one.
func whyChosen(r spec.Runtime, f facts.Facts, e facts.Engine) []string {
	rest := strings.Join(others(e, f.Engines), " and ")
	_, gone := startable(f.Engines)
	switch {
	case r.Engine != "auto" || r.Config != "":
		return nil
	case rest == "" && f.Kubelet.Endpoint == "" && len(gone) > 0:
		return []string{fmt.Sprintf("gpuadm configures %s: %s", engine.UnitOf(e), strings.Join(gone, ", and "))}
	case rest == "":
		return nil
	case f.Kubelet.Endpoint != "":
		return []string{fmt.Sprintf("kubelet talks to %s, the socket of %s: %s is left as it is", f.Kubelet.Endpoint, engine.UnitOf(e), rest)}
	}
	return []string{fmt.Sprintf("no kubelet says which engine it uses: %s is changed, and %s is left as it is; engine in [runtime] names another", engine.UnitOf(e), rest)}
}

// unknownEndpoint says that kubelet talks to an engine that gpuadm has not found: a handler in
// another engine would not serve its pods.
func unknownEndpoint(endpoint string, engines []facts.Engine, gone []string) error {
	var at []string
	for _, e := range engines {
		at = append(at, fmt.Sprintf("%s at %s", e.Name, e.Socket))
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot configure a container engine: kubelet talks to %s, and none of the engines found listens there", endpoint), Because: gone,
		Try: []string{
			"point kubelet's containerRuntimeEndpoint at one of these: " + strings.Join(at, ", "),
			fmt.Sprintf("or, if its pods do not matter here, say engine = %q in [runtime]", engines[0].Name),
		},
	}
}

// notes say which program is missing, and which settings of the engine have no effect.
func notes(v host.View, s spec.Spec, f facts.Facts) []string {
	list := lacksToolkit(v, s, f)
	e, err := chosen(s.Runtime, f)
	switch {
	case !s.Has("runtime") || err != nil:
		return list
	case e.Name == "docker":
		list = append(list, docker.Notes(e, f.Kubelet, engine.PlainHandler(s.Runtime))...)
	case e.Name == "containerd":
		list = append(list, containerd.Notes(s, f, e)...)
	case e.Name == "crio":
		list = append(list, crio.Configured(e).Unread...)
	}
	return append(list, whyChosen(s.Runtime, f, e)...)
}

// lacksToolkit notes that the handler's program is not there and that nothing in the spec brings
// it.
func lacksToolkit(v host.View, s spec.Spec, f facts.Facts) []string {
	if !s.Has("runtime") || s.Has("toolkit") || s.Runtime.Inject == "cdi" || !v.Live() || len(f.Programs) > 0 {
		return nil
	}
	e, err := chosen(s.Runtime, f)
	if err != nil {
		return nil // the stage says so
	}
	h := containerd.HandlerFor(s, f, e)
	switch {
	case h.Name == "":
		return nil
	case e.Owner == "k3s" || e.Owner == "rke2":
		return []string{fmt.Sprintf("%s is not installed: %s has no handler %s until it is; [toolkit] in node.toml installs it, and "+trouble.Command("apply")+" restarts %s then", path.Base(engine.Binary), e.Owner, h.Name, e.Unit)}
	}
	return []string{fmt.Sprintf("%s is not installed: containers of the handler %s do not start until it is; [toolkit] in node.toml installs it", path.Base(engine.Binary), h.Name)}
}
