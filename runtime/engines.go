// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
)

// What CRI-O and Docker have in common.

// plainHandler is the handler that the spec asks for, of an engine whose entries have one usual name.
func plainHandler(r spec.Runtime) Handler {
	h := Handler{Name: r.Handler, Binary: Binary, Default: r.SetAsDefault, CDI: r.CDI}
	if h.Name == "auto" {
		h.Name = "nvidia"
	}
	return h
}

// othersWrite says whether others write the engine's configuration, so that gpuadm verifies it and does not edit.
func othersWrite(r spec.Runtime, e facts.Engine) bool {
	return e.Owner != "" && r.Owner != "gpuadm" || r.Owner == "other"
}

// notes say what is missing, and what the engine does not do.
func notes(v host.View, s spec.Spec, f facts.Facts) []string {
	list := slices.Concat(lacksToolkit(v, s, f), keepsCDI(s, f))
	if e, err := engine(s.Runtime, f); s.Has("runtime") && err == nil && e.Name == "docker" {
		list = append(list, dockerNotes(e, f.Kubelet, plainHandler(s.Runtime))...)
	}
	return list
}

func unitOf(e facts.Engine) string {
	if e.Unit == "" {
		return e.Name + ".service"
	}
	return e.Unit
}

func handlerWhy(h Handler) string {
	why := fmt.Sprintf("handler %s runs %s", h.Name, path.Base(h.Binary))
	if h.Default {
		why += ", and is the default"
	}
	return why
}

// ownersProgram wants the program there that an entry of others runs. Such an entry is right as it is, whatever it is called: the
// GPU Operator's runs one below /usr/local/nvidia.
func ownersProgram(name, file, program string, inherits bool) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		cannot := fmt.Sprintf("cannot use the handler %s of %s: ", name, file)
		switch {
		case inherits:
			return cannot + crioInherits + " has it run the default runtime's program", nil
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
