// SPDX-License-Identifier: Apache-2.0

package engine

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
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// Binary is where the NVIDIA Container Toolkit's packages put the runtime that a handler runs.
const Binary = facts.RuntimeOfPackages

// Extensions is the package of the programs .cdi and .legacy. [toolkit] does not install it.
const Extensions = "nvidia-container-toolkit-operator-extensions"

// Handler is the desired state of a CRI runtime handler.
type Handler struct {
	Name    string // "nvidia"
	Binary  string // "/usr/bin/nvidia-container-runtime"
	Default bool   // make it default_runtime_name; false leaves the default alone
	CDI     bool   // enable_cdi = true where that version has the key and it is not on already

	Overrides bool // CDI overrides an enable_cdi = false in the configuration

	// Programs are the NVIDIA runtimes that are installed. An entry that runs one of them is right:
	// another program, such as the GPU Operator, may have written it.
	Programs []string

	// Systemd says that kubelet has systemd manage cgroups. A new entry follows it where no other
	// entry says how.
	Systemd bool

	// Owned says that the file's owner writes the handler: if its program is installed, gpuadm adds
	// nothing.
	Owned bool
}

// Runs says whether an entry that runs program is right.
func (h Handler) Runs(program string) bool {
	return program == h.Binary || slices.Contains(h.Programs, program)
}

// Stated says that the spec says which program the handler runs: an entry with another
// one is wrong.
func (h Handler) Stated() bool {
	return h.Binary != Binary && !facts.OfOperator(h.Binary)
}

// Why says what the handler is for, as the reason of an edit.
func (h Handler) Why() string {
	why := fmt.Sprintf("handler %s runs %s", h.Name, path.Base(h.Binary))
	if h.Default {
		why += ", and is the default"
	}
	return why
}

// ProgramOf is the program that the spec's handler runs. Of the toolkit's programs the variants
// .cdi and .legacy have one mode of injection, as the handlers of these names have it that the GPU
// Operator writes; the package Extensions brings them.
// Sources: cmd/nvidia-container-runtime.cdi and packaging/debian of
// https://github.com/NVIDIA/nvidia-container-toolkit; gpu-operator/cdi.rst of
// https://github.com/NVIDIA/cloud-native-docs on the runtime classes.
func ProgramOf(r spec.Runtime) string {
	switch {
	case r.Program != "":
		return r.Program
	case r.Handler == "nvidia-cdi":
		return Binary + ".cdi"
	case r.Handler == "nvidia-legacy":
		return Binary + ".legacy"
	}
	return Binary
}

// PlainHandler is the handler that the spec asks for; "auto" is nvidia.
func PlainHandler(r spec.Runtime) Handler {
	name := r.Handler
	if name == "auto" {
		name = "nvidia"
	}
	return Handler{
		Name:    name,
		Binary:  ProgramOf(r),
		Default: r.SetAsDefault,
		CDI:     r.CDI,
	}
}

// DefaultRuns wants the program of a default handler to work: without it no new container of any
// kind starts. made says that this apply makes the entry: then, and at boot, DefaultRuns runs the
// program too. If the toolkit's packages, which bring Binary, are not installed yet, it returns the
// handler without the default.
func DefaultRuns(
	s spec.Spec, f facts.Facts, h Handler, program string, made bool,
) (Handler, []converge.Want) {
	if !h.Default {
		return h, nil
	}

	sameName := func(installed string) bool { return path.Base(installed) == program }
	if i := slices.IndexFunc(f.Programs, sameName); i >= 0 {
		program = f.Programs[i] // nvidia-ctk writes a name without folders for Docker
	}

	ofToolkit := program == Binary || program == path.Base(Binary)
	comes := ofToolkit && s.Has("toolkit")
	look := func(ctx context.Context, v host.View) (string, error) {
		info, err := v.Stat(program)
		switch {
		case err != nil && !host.NotExist(err):
			return "", err
		case err != nil && comes:
			return "", host.Later{Until: "the toolkit's packages are installed"}
		case err != nil:
			return fmt.Sprintf("cannot make %s the default: %s is not there, and without it no container starts", h.Name, program), nil
		case !info.Mode.IsRegular() || info.Mode&0o111 == 0:
			return fmt.Sprintf("cannot make %s the default: %s cannot be run", h.Name, program), nil
		}

		if !v.Live() || !made && !f.Booting {
			return "", nil
		}
		return answersVersion(ctx, v, h.Name, program)
	}

	install := "install it"
	switch {
	case ofToolkit:
		install = "install it: write [toolkit] into node.toml"
	case strings.HasPrefix(program, Binary+"."):
		install = "install it: the package " + Extensions + " has it"
	}
	works := things.Check(program+" runs", look, "as the default it starts every container", install,
		"or drop set_as_default from [runtime]: pods ask for the handler by a RuntimeClass")

	if comes && !slices.Contains(f.Programs, program) {
		h.Default = false // it would name a program that is not installed yet
	}
	return h, []converge.Want{works}
}

// answersVersion runs the program as far as possible without a container: the program reads its
// configuration, finds the runtime that it calls, runc or crun, and has that print its version too.
// No answer in time says nothing of the program, so it is an error of the look: see NotJudged.
// Sources: NVIDIA/nvidia-container-toolkit, internal/runtime/runtime.go and
// internal/oci/runtime_low_level.go.
func answersVersion(ctx context.Context, v host.View, handler, program string) (string, error) {
	_, err := v.Ask(ctx, program, "--version")
	isLate := errors.Is(err, context.DeadlineExceeded)
	if isLate || !errors.As(err, new(*host.CommandError)) {
		return "", err
	}

	problem := fmt.Sprintf("cannot make %s the default: %s --version fails: %v", handler, path.Base(program), err)
	return problem + things.OrTry("install runc where it looks for it, or see runtimes in /etc/nvidia-container-runtime/config.toml"), nil
}

// OwnersProgram wants the program of an entry that gpuadm has not written to be installed; wrong
// says why the entry cannot be used, "" if it can. Any program will do: the GPU Operator's is below
// /usr/local/nvidia.
func OwnersProgram(name, file, program, wrong string) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		problem := wrong
		switch {
		case wrong != "":
		case program == "":
			problem = "it names no program"
		case !facts.Runs(v, program):
			problem = program + " is not there"
		default:
			return "", nil
		}

		return fmt.Sprintf("cannot use the handler %s of %s: %s", name, file, problem), nil
	}

	const why = "it was there before gpuadm, and stays"
	return things.Check(fmt.Sprintf("handler %s in %s", name, file), look, why,
		fmt.Sprintf("take the entry out of %s, and gpuadm writes its own; or install its program", file))
}

// SameEntry compares two entries of a handler: a key whose value means none is the same as no key.
func SameEntry(one, other map[string]any, isNone func(value any) bool) bool {
	differs := func(c toml.Change) bool { return !isNone(c.Old) || !isNone(c.New) }
	return !slices.ContainsFunc(toml.Diff(one, other, nil), differs)
}
