// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// wantsFunc returns the wants for a handler.
type wantsFunc = func(spec.Spec, facts.Facts, facts.Engine, engine.Handler) ([]converge.Want, error)

// An owner is a program or a cloud that writes containerd's configuration.
type owner struct {
	// handler says which handler "auto" is, by the programs that are installed; "" = none is
	// needed.
	handler func(e facts.Engine, programs []string) string
	wants   wantsFunc
}

// owners has what the runtime stage wants for each owner of a configuration, by the owner's name in
// facts. Nothing else in this package depends on the owner.
func owners() map[string]owner {
	edited := owner{handlerNvidia, wantsEdit}        // the file is edited, and the daemon restarted
	rancher := owner{handlerNvidia, wantsRancher}    // their unit writes the handler; else a drop-in has it
	k0s := owner{handlerNvidia, wantsK0s}            // a file in its folder of additions has the handler
	google := owner{handlerNone, wantsNothing}       // the device plugin mounts the driver's files
	nodeadm := owner{handlerFromFile, wantsNodeadm}  // nodeadm writes the file after gpuadm in a boot
	verified := owner{handlerFromFile, wantsChecked} // a handler must run an installed program

	return map[string]owner{
		"":             edited,
		"k3s":          rancher,
		"rke2":         rancher,
		"k0s":          k0s,
		"gke":          google,
		"cos":          google,
		"nodeadm":      nodeadm,
		"bottlerocket": verified,
		"talos":        verified,
		"other":        verified, // the spec says so
	}
}

// ownerOf is the owner of an engine's configuration. The spec can say that there is none, but for
// the file that K3s and RKE2 generate at each start, and that of k0s.
func ownerOf(s spec.Spec, e facts.Engine) owner {
	all := owners()
	switch e.Owner {
	case "k3s", "rke2", "k0s":
		return all[e.Owner]
	}

	switch s.Runtime.Owner {
	case "gpuadm":
		if e.Owner == "gke" {
			return owner{handlerNone, refuseGKE}
		}
		return all[""]
	case "other":
		return all["other"]
	}

	if p := platform.WriterOf(e.Owner); p.Engine.How == platform.After {
		return owner{handlerOfPlatform(p), wantsAfter(p)}
	}
	if known, found := all[e.Owner]; found {
		return known
	}
	return all["other"]
}

// wantsNothing leaves the configuration alone, unless the spec names a handler.
func wantsNothing(_ spec.Spec, _ facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	if h.Name != "" {
		return []converge.Want{engine.Verify(e, h, missing(e, h))}, nil
	}

	want := things.Check(e.Config+" is "+e.Owner+"'s", noProblem,
		e.Owner+" needs no handler: its device plugin mounts the driver's files into containers")
	want.Releases = true
	return []converge.Want{want}, nil
}

func noProblem(context.Context, host.View) (string, error) { return "", nil }

// wantsChecked verifies the handler, and edits nothing.
func wantsChecked(_ spec.Spec, _ facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	return []converge.Want{engine.Verify(e, h, missing(e, h))}, nil
}

// wantsAfter edits the file in place once the platform's scripts have ended: they write it once,
// and not again. The platform's own handler stays as it is.
func wantsAfter(p platform.Platform) wantsFunc {
	return func(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
		if f.Files[p.Join.Done] == nil {
			return wantsChecked(s, f, e, h)
		}
		h.Owned = h.Name == p.Engine.Handler
		return wantsEdit(s, f, e, h)
	}
}

// refuseGKE refuses to own a file that configure-helper makes again at each boot: an edit would be
// gone then.
// Source: kubernetes/kubernetes, cluster/gce/gci/node.yaml and configure-helper.sh;
// https://github.com/cilium/cilium/pull/18486.
func refuseGKE(_ spec.Spec, _ facts.Facts, e facts.Engine, _ engine.Handler) ([]converge.Want, error) {
	return nil, &trouble.Error{
		What: "cannot own " + e.Config + ": GKE's configure-helper writes it again at each boot",
		Try:  []string{`drop owner = "gpuadm" from [runtime], and let a device plugin with CDI give GPUs to pods`},
	}
}

// wantsNodeadm verifies a file that nodeadm writes. In a boot nodeadm runs after gpuadm and waits
// for it, so gpuadm does not wait for a handler that is missing here. Stage join tells nodeadm to
// write it, and stage ready asks the engine whether it has the handler, before pods come.
func wantsNodeadm(s spec.Spec, _ facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	lack := missing(e, h)
	want := engine.Verify(e, h, lack)
	joins := s.Join.Method == "eks" || s.Join.Method == "auto"
	if joins && lack != "" {
		want.Thing = things.Check(e.Config+" is nodeadm's", noProblem, "").Thing
		want.Why = "nodeadm writes it when it runs next, and the handler into it"
	}
	return []converge.Want{want}, nil
}
