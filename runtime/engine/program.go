// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// DefaultRuns wants the program of a default handler to work: without it no new container of any kind starts. made says that the entry
// is made now: then, and at boot, the program is run too. It returns the handler without the default where the packages that bring the
// program are still to come.
func DefaultRuns(s spec.Spec, f facts.Facts, h Handler, program string, made bool) (Handler, []converge.Want) {
	if !h.Default {
		return h, nil
	}
	made = made || f.Booting
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

// answersVersion runs the program as far as it goes without a container: it reads its configuration, finds the runtime below it, runc
// or crun, and has that say its version too. Sources: NVIDIA/nvidia-container-toolkit, internal/runtime/runtime.go and
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

// OwnersProgram wants the program there that an entry of others runs; wrong says why the entry cannot be used, "" if it can. Such an
// entry is right as it is, whatever it is called: the GPU Operator's runs one below /usr/local/nvidia.
func OwnersProgram(name, file, program, wrong string) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		cannot := fmt.Sprintf("cannot use the handler %s of %s: ", name, file)
		switch {
		case wrong != "":
			return cannot + wrong, nil
		case program == "":
			return cannot + "it names no program", nil
		}
		if found, err := programAt(v, program); err != nil || found {
			return "", err
		}
		return cannot + program + " is not there", nil
	}
	return things.Check(fmt.Sprintf("handler %s in %s", name, file), look, "it was there before gpuadm, and stays",
		fmt.Sprintf("take the entry out of %s, and gpuadm writes its own; or install its program", file))
}

// programAt says whether a program is there, by its path or in the folders where engines search.
func programAt(v host.View, program string) (bool, error) {
	places := []string{program}
	if !path.IsAbs(program) {
		places = nil
		for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
			places = append(places, path.Join(dir, program))
		}
	}
	for _, p := range places {
		info, err := v.Stat(p)
		if err == nil && info.Mode.IsRegular() && info.Mode&0o111 != 0 {
			return true, nil
		}
	}
	return false, nil
}
