// SPDX-License-Identifier: Apache-2.0

// Package engine has what all container engines share: the desired handler and its program, the
// restart of a daemon and the wait until it serves again (handler.go), and how undo takes gpuadm's
// edits out of TOML files (takeout.go).
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Binary is where the NVIDIA Container Toolkit's packages put the runtime that a handler runs.
const Binary = facts.RuntimeOfPackages

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

// Why says what the handler is for, as the reason of an edit.
func (h Handler) Why() string {
	why := fmt.Sprintf("handler %s runs %s", h.Name, path.Base(h.Binary))
	if h.Default {
		why += ", and is the default"
	}
	return why
}

// PlainHandler is the handler that the spec asks for; "auto" is nvidia.
func PlainHandler(r spec.Runtime) Handler {
	h := Handler{Name: r.Handler, Binary: Binary, Default: r.SetAsDefault, CDI: r.CDI}
	if h.Name == "auto" {
		h.Name = "nvidia"
	}
	return h
}

// OthersWrite says whether others write the engine's configuration, so that gpuadm verifies it and
// does not edit.
func OthersWrite(r spec.Runtime, e facts.Engine) bool {
	return e.Owner != "" && r.Owner != "gpuadm" || r.Owner == "other"
}

// Verify wants the handler in a configuration that another owner writes, and edits nothing. lacks
// says what it lacks, "" if nothing.
func Verify(e facts.Engine, h Handler, lacks string) converge.Want {
	owner, because := e.Owner, ""
	if owner == "" {
		owner = "another program" // the spec says so
	}
	if e.Why != "" {
		because = " (" + e.Why + ")"
	}
	look := func(context.Context, host.View) (string, error) {
		if lacks == "" {
			return "", nil
		}
		return fmt.Sprintf("cannot use the handler %s: %s, and %s writes that file", h.Name, lacks, owner), nil
	}
	why := fmt.Sprintf("%s writes %s%s, so gpuadm verifies and does not edit", owner, e.Config, because)
	w := things.Check(fmt.Sprintf("handler %s in %s", h.Name, e.Config), look, why,
		fmt.Sprintf("let %s write it, or set owner = \"gpuadm\" in [runtime] if it no longer does", owner))
	w.Releases = true
	return w
}

// ParseVersion reads major and minor off "1.7.24", "v2.1.5", "2.1.5~ds1".
func ParseVersion(s string) (major, minor int, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(strings.TrimSpace(s), "v"), ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	digits := strings.IndexFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' })
	if digits >= 0 {
		parts[1] = parts[1][:digits]
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(parts[1])
	return major, minor, err == nil
}

// Configured is what an engine's configuration says of handlers, as the engine reads it.
type Configured struct {
	Unreadable error             // why the engine cannot serve pods with it; nil: it can, or gpuadm cannot tell
	Default    string            // the handler of pods that name none
	Unread     []string          // which settings the engine starts without, by file
	Programs   map[string]string // by handler: the program that it runs, as the configuration states it
	Cgroups    map[string]string // by handler: systemd or cgroupfs, where containerd has the choice
}

// Loads judges an engine's present files as its next start would read them: by gpuadm's reader, and
// then by the engine's own program, which ask asks.
func Loads(e facts.Engine, read func(facts.Engine) Configured, ask func(context.Context, host.View) error) things.PrecheckFunc {
	return func(ctx context.Context, v host.View) error {
		err := read(e).Unreadable
		if err == nil {
			err = ask(ctx, v)
		}
		switch says := (*trouble.Error)(nil); {
		case err == nil, errors.As(err, &host.Later{}):
			return nil
		case errors.As(err, &says):
			return err
		}
		return &trouble.Error{
			What: fmt.Sprintf("cannot start %s with its present files: %v", UnitOf(e), err), Err: err, Try: []string{Shows(e) + ", which says where"},
		}
	}
}

// JudgeEdit has an engine's own program judge an edit of the file target. ask has the program print
// its configuration with these bytes in that file, and judge compares what it prints before and
// after. Where no program answers, gpuadm's own reader has to do.
func JudgeEdit[T any](e facts.Engine, target string, before, after []byte, ask func(data []byte) (T, error), judge func(was, is T) error) error {
	was, err := ask(before)
	switch {
	case errors.As(err, &host.Later{}):
		return nil
	case err != nil && e.Binary == "": // its unit may still run what was removed
		return &trouble.Error{
			What: fmt.Sprintf("cannot edit %s: the engine's program is not found, so gpuadm cannot verify the change with it", target),
			Try:  []string{"reinstall the engine: its configuration is there"}, Err: err,
		}
	case err != nil:
		return &trouble.Error{
			What: fmt.Sprintf("cannot edit %s: %s rejects its present configuration: %v", target, e.Name, err), Try: []string{Shows(e) + ", which says where"}, Err: err,
		}
	}
	is, err := ask(after)
	if err == nil {
		err = judge(was, is)
	}
	if err == nil {
		return nil
	}
	try, says := []string{"report it with " + trouble.Command("facts --record") + " and the configuration: gpuadm should have known"}, (*trouble.Error)(nil)
	if errors.As(err, &says) {
		try = says.Try
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot edit %s: %s would read the edited file differently: %v", target, e.Name, err),
		Because: []string{e.Name + " was asked about a copy; the machine's own files are as they were"}, Try: try, Err: err,
	}
}

// Shows is the command that prints an engine's configuration as its program reads it, or says why
// it cannot.
func Shows(e facts.Engine) string {
	program := cmp.Or(e.Binary, e.Name)
	switch e.Name {
	case "crio":
		return "sudo " + program + " config"
	case "docker":
		return "sudo " + program + " --validate --config-file " + e.Config
	}
	return "sudo " + program + " --config " + e.Config + " config dump"
}

// DefaultRuns wants the program of a default handler to work: without it no new container of any
// kind starts. made says that this apply makes the entry: then, and at boot, DefaultRuns runs the
// program too. If the packages that bring the program are not installed yet, it returns the handler
// without the default.
func DefaultRuns(s spec.Spec, f facts.Facts, h Handler, program string, made bool) (Handler, []converge.Want) {
	if !h.Default {
		return h, nil
	}
	made = made || f.Booting
	if i := slices.IndexFunc(f.Programs, func(p string) bool { return path.Base(p) == program }); i >= 0 {
		program = f.Programs[i] // nvidia-ctk writes a name without folders for Docker
	}
	look := func(ctx context.Context, v host.View) (string, error) {
		i, err := v.Stat(program)
		switch {
		case err != nil && s.Has("toolkit"):
			return "", host.Later{Until: "the toolkit's packages are installed"}
		case err != nil:
			return fmt.Sprintf("cannot make %s the default: %s is not there, and without it no container starts", h.Name, program), nil
		case !i.Mode.IsRegular() || i.Mode&0o111 == 0:
			return fmt.Sprintf("cannot make %s the default: %s cannot be run", h.Name, program), nil
		case !made || !v.Live():
			return "", nil
		}
		return answersVersion(ctx, v, h.Name, program)
	}
	w := things.Check(program+" runs", look, "as the default it starts every container",
		"install it: write [toolkit] into node.toml", "or drop set_as_default from [runtime]: pods ask for the handler by a RuntimeClass")
	if !slices.Contains(f.Programs, program) && s.Has("toolkit") {
		h.Default = false // it would name a program that is not there yet
	}
	return h, []converge.Want{w}
}

// answersVersion runs the program as far as possible without a container: the program reads its
// configuration, finds the runtime that it calls, runc or crun, and has that print its version too.
// Sources: NVIDIA/nvidia-container-toolkit, internal/runtime/runtime.go and
// internal/oci/runtime_low_level.go.
func answersVersion(ctx context.Context, v host.View, handler, program string) (string, error) {
	_, err := v.Ask(ctx, program, "--version")
	failed := (*host.CommandError)(nil)
	if !errors.As(err, &failed) {
		return "", err
	}
	return fmt.Sprintf("cannot make %s the default: %s --version fails: %v", handler, path.Base(program), err) +
		things.OrTry("install runc where it looks for it, or see runtimes in /etc/nvidia-container-runtime/config.toml"), nil
}

// OwnersProgram wants the program of an entry that gpuadm has not written to be installed; wrong
// says why the entry cannot be used, "" if it can. Any program will do: the GPU Operator's is below
// /usr/local/nvidia.
func OwnersProgram(name, file, program, wrong string) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		cannot := fmt.Sprintf("cannot use the handler %s of %s: ", name, file)
		switch {
		case wrong != "":
			return cannot + wrong, nil
		case program == "":
			return cannot + "it names no program", nil
		}
		if facts.Runs(v, program) {
			return "", nil
		}
		return cannot + program + " is not there", nil
	}
	return things.Check(fmt.Sprintf("handler %s in %s", name, file), look, "it was there before gpuadm, and stays",
		fmt.Sprintf("take the entry out of %s, and gpuadm writes its own; or install its program", file))
}

const (
	// patience is how long a daemon has to answer CRI after its restart. Most start within a
	// second; on nodes with thousands of containers many seconds were seen.
	patience = 60 * time.Second
	// AnswerPatience is how long a daemon has to answer CRI where gpuadm has not restarted it.
	AnswerPatience = 3 * time.Second
)

const (
	NoProgram trouble.Code = "RUN-004"      // doctor's code for a default handler whose program is missing
	NoCRI     trouble.Code = "cri-disabled" // the configuration switches the CRI plugin off
)

// Restart wants an engine to have started after its files were changed. Where kubelet restarts with
// it, the want says so.
func Restart(f facts.Facts, e facts.Engine, files []string, ready things.ReadyFunc, why string) converge.Want {
	unit := UnitOf(e)
	w := things.Restart(unit, files, ready, why)
	if unit == f.Kubelet.Unit || slices.Contains(f.Kubelet.Requires, unit) {
		w.Breaks = append(w.Breaks, "restart-kubelet")
	}
	return w
}

// UntilDone calls try until it succeeds, returns a host.Later, or has failed for as long as
// patience.
func UntilDone(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil || errors.As(err, &host.Later{}) || host.Pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// Reading is the engine that reads a configuration file and runs in a unit; the zero Engine if
// there is none.
func Reading(ctx context.Context, v host.View, config, unit string) (facts.Engine, error) {
	all, err := facts.Engines(ctx, v, facts.Stated{Config: config, Unit: unit})
	for _, e := range all {
		if err == nil && e.Config == config && UnitOf(e) == unit {
			return e, nil
		}
	}
	return facts.Engine{}, err
}

// UnitOf is the unit that runs an engine.
func UnitOf(e facts.Engine) string {
	if e.Unit == "" {
		return e.Name + ".service"
	}
	return e.Unit
}
