// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/platform"
)

// snaps returns the platforms that are snaps.
func snaps() []platform.Platform {
	return slices.DeleteFunc(platform.All(), func(p platform.Platform) bool {
		return p.Snap == nil
	})
}

// snapKubelets returns the units of kubelets that are snaps, and use an engine of the
// machine's own.
func snapKubelets() (units []string) {
	for _, p := range snaps() {
		if p.Snap.Engine == "" {
			units = append(units, p.Snap.Kubelet)
		}
	}
	return units
}

// snap finds a Kubernetes distribution that is a snap.
func (g *gathering) snap(ctx context.Context, name string, at platform.Snap) *distribution {
	if at.Engine == "" {
		return nil
	}
	engineUnit := g.service(ctx, at.Engine)
	kubeletUnit := g.service(ctx, at.Kubelet)
	if engineUnit == nil {
		return nil
	}

	program := g.first("/snap/"+name+"/current", "/var/lib/snapd/snap/"+name+"/current")
	variables := []string{
		"${SNAP}", program,
		"${SNAP_DATA}", "/var/snap/" + name + "/current",
		"${SNAP_COMMON}", "/var/snap/" + name + "/common",
	}
	commandOf := func(daemon string) []string {
		text := string(g.read(at.Args + "/" + daemon))
		return append([]string{daemon}, Words(strings.NewReplacer(variables...).Replace(text))...)
	}

	argv := commandOf("containerd")
	template := g.first(at.Args + "/containerd-template.toml")
	e := &Engine{
		Name:   "containerd",
		Binary: g.inSnap(program, "/bin/containerd"),
		Unit:   engineUnit.name,
		Config: cmp.Or(template, option(argv, "config", "c"), containerdDefault),
	}
	g.engineVersion(ctx, e)
	files, socket := g.containerdFiles(e.Config, Globs(e.Version))
	e.Files = files
	e.Socket = cmp.Or(option(argv, "address", "a"), socket, "/run/containerd/containerd.sock")
	e.Expands = append(variables,
		"${RUNTIME}", "runc",
		"${RUNTIME_TYPE}", "io.containerd.runc.v2",
		"${SNAPSHOTTER}", "overlayfs",
	)

	argv = commandOf("kubelet")
	k := Kubelet{
		Binary:      g.inSnap(program, "/kubelet", "/bin/kubelet"),
		Unit:        at.Kubelet,
		ConfigOwner: name,
		Dir:         option(argv, "root-dir"),
		Files:       []File{{Path: at.Args + "/kubelet"}},
	}
	if kubeletUnit != nil {
		k.Active = kubeletUnit.active
	}
	g.kubeletConfig(&k, argv)
	certified := k.credentials(g, option(argv, "kubeconfig"))
	k.NodeName = nodeName(cmp.Or(option(argv, "hostname-override"), certified), g.hostname())
	k.Labels = labels(Options(argv, "node-labels"))
	k.Taints = taints(option(argv, "register-with-taints"))
	k.LabelsAt = Place{
		Why: "the snap " + name + " reads kubelet's arguments from " + at.Args + "/kubelet, which is its own",
	}
	k.TaintsAt = k.LabelsAt
	k.Endpoint = cmp.Or(k.Endpoint, "unix://"+e.Socket)

	return &distribution{engine: e, kubelet: k}
}

// inSnap returns the first file that exists below a snap's folder; "" for a snap that has no folder,
// since it is not mounted.
func (g *gathering) inSnap(folder string, names ...string) string {
	if folder == "" {
		return ""
	}
	var paths []string
	for _, name := range names {
		paths = append(paths, folder+name)
	}
	return g.first(paths...)
}
