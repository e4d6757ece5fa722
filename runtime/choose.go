// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// ForPods is the engine that pods run on.
func ForPods(f facts.Facts) (facts.Engine, error) {
	return chosen(spec.Runtime{Engine: "auto"}, f)
}

// chosen returns the container engine to configure: the spec's, if it names one; else kubelet's;
// else the first one found.
func chosen(r spec.Runtime, f facts.Facts) (facts.Engine, error) {
	if r.Config != "" {
		return readerOf(r, f)
	}

	engines, gone := startable(f.Engines)
	e, found := pick(r, f.Kubelet, engines)
	if !found {
		return facts.Engine{}, notInstalled(r, engines, gone)
	}

	if r.Engine == "auto" {
		if err := checkKubelet(f, e, engines, gone); err != nil {
			return e, err
		}
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

// pick returns the first engine that the spec allows, or the first of those that kubelet uses:
// facts put the one first that listens at kubelet's socket.
func pick(r spec.Runtime, kubelet facts.Kubelet, engines []facts.Engine) (picked facts.Engine, found bool) {
	for _, e := range engines {
		if r.Engine != "auto" && e.Name != r.Engine {
			continue
		}
		if r.Engine == "auto" && kubelet.Endpoint == "" && onlyForDocker(e, engines) {
			continue
		}
		if kubelet.Uses(e) {
			return e, true
		}
		if !found {
			picked = e
			found = true
		}
	}
	return picked, found
}

// notInstalled says that the engine that the spec asks for is not among those that are installed.
func notInstalled(r spec.Runtime, engines []facts.Engine, gone []string) error {
	if r.Engine == "auto" {
		return &trouble.Error{
			What:    "cannot configure a container engine: none is installed",
			Because: gone,
			Try:     []string{"install containerd first"},
		}
	}

	because := gone
	try := fmt.Sprintf("install %s first", r.Engine)
	if len(engines) > 0 {
		var names []string
		for _, e := range engines {
			names = append(names, e.Name)
		}
		because = append([]string{"installed: " + strings.Join(names, ", ")}, gone...)
		try = fmt.Sprintf("write engine = %q in [runtime], or %s", names[0], try)
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot configure %s: it is not installed", r.Engine),
		Because: because,
		Try:     []string{try},
	}
}

// checkKubelet refuses an engine of which gpuadm cannot tell that kubelet uses it.
func checkKubelet(f facts.Facts, e facts.Engine, engines []facts.Engine, gone []string) error {
	kubelet := f.Kubelet
	if kubelet.Endpoint != "" {
		if kubelet.Uses(e) {
			return nil
		}
		return unknownEndpoint(kubelet.Endpoint, engines, gone)
	}

	wrapped := kubelet.Unit != "" && kubelet.Args == nil
	rest := otherUnits(e, f.Engines)
	if !wrapped || len(rest) == 0 {
		return nil
	}
	return &trouble.Error{
		What: fmt.Sprintf(
			"cannot tell which container engine kubelet uses: %s starts kubelet through a wrapper, and %s and %s are installed",
			kubelet.Unit, engine.UnitOf(e), strings.Join(rest, " and "),
		),
		Try: []string{
			"start " + kubelet.Unit + ": gpuadm asks the kubelet that runs",
			fmt.Sprintf("or write engine = %q into [runtime]", e.Name),
		},
	}
}

// unknownEndpoint says that kubelet talks to an engine that gpuadm has not found: a handler in
// another engine would not serve its pods.
func unknownEndpoint(endpoint string, engines []facts.Engine, gone []string) error {
	var known []string
	for _, e := range engines {
		if servesKubelet(e, engines) {
			socket := cmp.Or(e.CRI, e.Socket)
			known = append(known, fmt.Sprintf("unix://%s of %s", socket, e.Name))
		}
	}

	var try []string
	if known != nil {
		try = []string{"point kubelet's containerRuntimeEndpoint at one of these: " + strings.Join(known, ", ")}
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot configure a container engine: kubelet talks to %s, and none of the engines found listens there", endpoint),
		Because: gone,
		Try:     append(try, fmt.Sprintf("if its pods do not matter here, write engine = %q into [runtime]", engines[0].Name)),
	}
}

// readerOf returns the engine that reads the file that the spec names.
func readerOf(r spec.Runtime, f facts.Facts) (facts.Engine, error) {
	for _, e := range f.Engines {
		if e.Config != r.Config || r.Engine != "auto" && r.Engine != e.Name {
			continue
		}
		if isInstalled(e) {
			return e, nil
		}
	}
	return facts.Engine{}, &trouble.Error{
		What: fmt.Sprintf("cannot edit %s: no process and no unit is known to read it", r.Config),
		Try: []string{
			`write engine_binary = "PROGRAM" into [runtime]: the absolute path of the program that reads it, which a unit starts`,
			"or drop config: gpuadm edits what kubelet's engine reads",
		},
		Keys: []string{"runtime.config"},
	}
}

// isInstalled says whether an engine has a program or a unit, and not a unit alone whose program is
// gone.
func isInstalled(e facts.Engine) bool {
	return (e.Unit != "" || e.Binary != "") && !isGone(e)
}

// isGone says whether an engine's unit is installed, and the program that it starts is not: systemd
// cannot start it. A unit of another name belongs to a distribution, which unpacks its program.
func isGone(e facts.Engine) bool {
	return e.Binary == "" && e.Wrapper == "" && e.Unit == e.Name+".service"
}

// startable returns the engines that systemd can start, and why it cannot start the others.
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

// onlyForDocker says whether this containerd serves Docker alone: Docker is installed, and
// containerd's CRI plugin is disabled, as in Docker's package. Then Kubernetes cannot use it, and
// its configuration does not matter to Docker's containers.
func onlyForDocker(e facts.Engine, all []facts.Engine) bool {
	if e.Name != "containerd" {
		return false
	}
	isDocker := func(other facts.Engine) bool {
		return other.Name == "docker" && other.Binary != ""
	}
	return slices.ContainsFunc(all, isDocker) && errors.Is(containerd.Configured(e).Unreadable, engine.NoCRI)
}

// servesKubelet says whether an engine answers CRI, which kubelet needs.
func servesKubelet(e facts.Engine, all []facts.Engine) bool {
	if e.Name == "docker" {
		return e.CRI != ""
	}
	return !onlyForDocker(e, all)
}

// otherUnits lists the units of the engines that kubelet could use instead of this one.
func otherUnits(e facts.Engine, all []facts.Engine) []string {
	var units []string
	for _, other := range all {
		if !isInstalled(other) || !servesKubelet(other, all) {
			continue
		}

		unit := engine.UnitOf(other)
		if unit != engine.UnitOf(e) && !slices.Contains(units, unit) {
			units = append(units, unit)
		}
	}

	return units
}

// whyChosen says why gpuadm configures this one of several engines; nil if there is one.
func whyChosen(r spec.Runtime, f facts.Facts, e facts.Engine) []string {
	if r.Engine != "auto" || r.Config != "" {
		return nil
	}

	unit := engine.UnitOf(e)
	endpoint := f.Kubelet.Endpoint
	rest := strings.Join(otherUnits(e, f.Engines), " and ")
	if rest == "" {
		_, gone := startable(f.Engines)
		if endpoint != "" || len(gone) == 0 {
			return nil
		}
		return []string{fmt.Sprintf("gpuadm configures %s: %s", unit, strings.Join(gone, ", and "))}
	}

	if endpoint != "" {
		return []string{fmt.Sprintf("kubelet talks to %s, the socket of %s: %s is left as it is", endpoint, unit, rest)}
	}
	return []string{fmt.Sprintf("no kubelet says which engine it uses: %s is changed, and %s is left as it is; engine in [runtime] names another", unit, rest)}
}
