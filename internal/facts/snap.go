// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/platform"
)

// snaps are the platforms that are one.
func snaps() []platform.Platform {
	return slices.DeleteFunc(platform.All(), func(p platform.Platform) bool { return p.Snap == nil })
}

// snap finds a Kubernetes distribution that is a snap.
func (g *gathering) snap(ctx context.Context, name string, at platform.Snap) *distribution {
	s, runs := g.service(ctx, at.Engine), g.service(ctx, at.Kubelet)
	if s == nil {
		return nil
	}
	args, kubeletUnit := at.Args, at.Kubelet
	program := g.first("/snap/"+name+"/current", "/var/lib/snapd/snap/"+name+"/current")
	variables := []string{
		"${SNAP}", program,
		"${SNAP_DATA}", "/var/snap/" + name + "/current",
		"${SNAP_COMMON}", "/var/snap/" + name + "/common",
	}
	given := func(daemon string) []string {
		return append([]string{daemon}, Words(strings.NewReplacer(variables...).Replace(string(g.read(args+"/"+daemon))))...)
	}
	argv := given("containerd")
	e := &Engine{
		Name:   "containerd",
		Binary: g.first(program + "/bin/containerd"),
		Unit:   s.name,
		Config: cmp.Or(g.first(args+"/containerd-template.toml"), option(argv, "config", "c"), containerdDefault),
	}
	g.engineVersion(ctx, e)
	e.Files, e.Socket = g.containerdFiles(e.Config, Globs(e.Version))
	e.Expands = append(variables, "${RUNTIME}", "runc", "${RUNTIME_TYPE}", "io.containerd.runc.v2", "${SNAPSHOTTER}", "overlayfs")
	e.Socket = cmp.Or(option(argv, "address", "a"), e.Socket, "/run/containerd/containerd.sock")
	flags := given("kubelet")
	k := Kubelet{
		Binary:      g.first(program+"/kubelet", program+"/bin/kubelet"),
		Unit:        kubeletUnit,
		ConfigOwner: name,
		Dir:         option(flags, "root-dir"),
		Files:       []File{{Path: args + "/kubelet"}},
	}
	if runs != nil {
		k.Active = runs.active
	}
	g.kubeletConfig(&k, flags)
	k.NodeName = nodeName(cmp.Or(option(flags, "hostname-override"), k.credentials(g, option(flags, "kubeconfig"))), g.hostname())
	k.Labels, k.Taints = labels(Options(flags, "node-labels")), taints(option(flags, "register-with-taints"))
	k.LabelsAt = Place{Why: "the snap " + name + " reads kubelet's arguments from " + args + "/kubelet, which is its own"}
	k.TaintsAt = k.LabelsAt
	k.Endpoint = cmp.Or(k.Endpoint, "unix://"+e.Socket)
	return &distribution{engine: e, kubelet: k}
}
