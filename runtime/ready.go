// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/crio"
	"github.com/gpuadm/gpuadm/runtime/docker"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Ready waits until the engine that runs in a unit answers CRI again. files[0] is the engine's
// configuration file: Ready finds the engine by it.
func Ready(ctx context.Context, v host.View, unit string, files []string) error {
	if len(files) == 0 {
		return nil
	}
	switch e, err := engine.Reading(ctx, v, files[0], unit); e.Name {
	case "crio":
		return crio.Ready(ctx, v, e)
	case "containerd":
		return containerd.Answers(ctx, v, e, engine.Handler{})
	default:
		return err
	}
}

// Answers returns an error unless the engine that pods run on answers now, and has loaded the
// handler that the spec asks for.
func Answers(ctx context.Context, v host.View, s spec.Spec, f facts.Facts) error {
	if !s.Has("runtime") {
		return nil
	}
	e, err := chosen(s.Runtime, f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, engine.AnswerPatience)
	defer cancel()
	h := engine.PlainHandler(s.Runtime)
	if s.Runtime.Inject == "cdi" {
		h.Name, h.Default = "", false
	}
	if e.Name == "containerd" && h.Name != "" {
		h.Name = containerd.HandlerFor(s, f, e).Name
	}
	return configurerOf(e).answers(ctx, v, e, h)
}

// injected wants CDI enabled in the engine, for inject = "cdi": a component in the cluster names
// CDI devices, and gpuadm writes no handler. gpuadm then leaves the configuration alone, its own
// earlier edits included: one of them may be enable_cdi.
// Sources: gpu-operator/cdi.rst of NVIDIA/cloud-native-docs; README of
// https://github.com/NVIDIA/k8s-device-plugin (cdi-cri).
func injected(e facts.Engine) converge.Want {
	look := func(context.Context, host.View) (string, error) {
		if why := withoutCDI(e); why != "" {
			return fmt.Sprintf("cannot have GPUs injected by CDI: %s", why), nil
		}
		return "", nil
	}
	w := things.Check("CDI is on in "+e.Name, look, "containers get GPUs by CDI alone, so "+e.Config+" is read and not edited",
		`write inject = "handler" in [runtime], if containers get GPUs by the NVIDIA runtime here`)
	w.Releases = true
	return w
}

// LacksCDI says why the engine of pods gives them no CDI devices; "" if it does, or no engine is
// known.
func LacksCDI(f facts.Facts) string {
	e, err := ForPods(f)
	if err != nil {
		return ""
	}
	return withoutCDI(e)
}

// withoutCDI says why an engine does not give containers CDI devices; "" if it does.
// Source: prerequisites.md of kubernetes-sigs/dra-driver-nvidia-gpu, which has CRI-O's version;
// Docker has no CRI.
func withoutCDI(e facts.Engine) string {
	major, minor, known := engine.ParseVersion(e.Version)
	switch {
	case e.Name == "containerd":
		return containerd.WithoutCDI(e)
	case e.Name != "crio":
		return e.Name + " is not what kubelet runs containers with"
	case known && (major < 1 || major == 1 && minor < 27):
		return fmt.Sprintf("CRI-O %s has no CDI by default: 1.27 is the first", e.Version)
	}
	return ""
}

// HandlerOf is the handler of the engine that kubelet uses, and which other program writes it.
type HandlerOf struct {
	Engine     facts.Engine
	Name       string // "" where no handler is needed
	Owner, Why string // "" where the stage edits the configuration
}

// HandlerOwner says which program writes the handler.
func HandlerOwner(s spec.Spec, f facts.Facts) (HandlerOf, error) {
	s.Runtime.Engine, s.Runtime.Handler = cmp.Or(s.Runtime.Engine, "auto"), cmp.Or(s.Runtime.Handler, "auto")
	e, err := chosen(s.Runtime, f)
	if err != nil {
		return HandlerOf{}, err
	}
	h := HandlerOf{Engine: e, Name: containerd.HandlerFor(s, f, e).Name}
	p := platform.WriterOf(e.Owner)
	switch {
	case s.Runtime.Inject == "cdi":
		h.Name = ""
	case s.Runtime.Owner == "other" && e.Owner == "":
		h.Owner, h.Why = "another program", `owner = "other" in [runtime]`
	case e.Owner == "k3s" || e.Owner == "rke2":
		h.Owner, h.Why = e.Owner, e.Why
	case s.Runtime.Owner == "gpuadm", e.Owner == "k0s", p.Engine.How == platform.After && f.Files[p.Join.Done] != nil && h.Name != p.Engine.Handler:
	default:
		h.Owner, h.Why = e.Owner, e.Why
	}
	return h, nil
}

// ForPods is the engine that pods run on.
func ForPods(f facts.Facts) (facts.Engine, error) { return chosen(spec.Runtime{Engine: "auto"}, f) }

// NeedsHandler says whether containers get the GPUs by a handler on this machine. With GKE's device
// plugin they need none.
func NeedsHandler(f facts.Facts) bool {
	h, err := HandlerOwner(spec.Spec{}, f)
	return err == nil && h.Name != ""
}

// ReadConfigured reads an engine's configuration.
func ReadConfigured(e facts.Engine) engine.Configured { return configurerOf(e).configured(e) }

// Reread wants the engine that pods run on to have started after the last change of its
// configuration. It edits nothing.
func Reread(f facts.Facts) ([]converge.Want, error) {
	e, err := chosen(spec.Runtime{Engine: "auto"}, f)
	if err != nil {
		return nil, err
	}
	files, why := containerd.Reads(e), e.Name+" reads its configuration when it starts"
	switch e.Name {
	case "crio":
		files = []string{e.Config, e.Folder}
	case "docker":
		return []converge.Want{docker.Restart(e, nil, why)}, nil
	}
	return []converge.Want{things.Prechecked(engine.Restart(f, e, files, Ready, why), Loads(e))}, nil
}

// Loads says why an engine would not serve pods after its next start.
func Loads(e facts.Engine) things.PrecheckFunc { return configurerOf(e).loads(e) }
