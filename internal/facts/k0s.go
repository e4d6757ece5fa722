// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// k0s finds a k0s that runs pods. It makes the engine's config at each start while that says so in
// a line of its own, with what it finds in a folder of additions; else the file is the
// administrator's.
// Source: pkg/component/worker/containerd and docs/runtime.md of https://github.com/k0sproject/k0s
func (g *gathering) k0s(ctx context.Context, units ...string) *distribution {
	s := g.service(ctx, units...)
	if s == nil {
		return nil
	}
	argv := g.argv(s)
	if slices.Contains(argv, "controller") && !slices.ContainsFunc(argv, func(a string) bool {
		return a == "--enable-worker" || a == "--enable-worker=true" || a == "--single" || a == "--single=true"
	}) {
		return nil
	}
	data := cmp.Or(option(argv, "data-dir"), "/var/lib/k0s")
	extra := append([]string{"kubelet"}, Words(option(argv, "kubelet-extra-args"))...)
	k := Kubelet{
		Unit:        s.name,
		Active:      s.active,
		Binary:      g.first(data + "/bin/kubelet"),
		ConfigOwner: "k0s",
		Config:      "/run/k0s/kubelet/config.yaml",
		Dir:         cmp.Or(option(extra, "root-dir"), data+"/kubelet"),
	}
	k.merge(File{k.Config, g.read(k.Config)})
	k.NodeName = nodeName(cmp.Or(option(extra, "hostname-override"), k.credentials(g, data+"/kubelet.conf")), g.hostname())
	k.Labels, k.Taints = labels(Options(argv, "labels")), taints(option(argv, "taints"))
	k.LabelsAt = Place{Why: "k0s takes labels and taints from its own command line: k0s install worker --labels … --taints …"}
	k.TaintsAt = k.LabelsAt
	d := &distribution{kubelet: k}
	if remote, is := strings.CutPrefix(option(argv, "cri-socket"), "remote:"); is {
		d.kubelet.Endpoint = remote
		return d
	}
	e := &Engine{
		Name:   "containerd",
		Binary: g.first(data + "/bin/containerd"),
		Config: "/etc/k0s/containerd.toml",
		Socket: "/run/k0s/containerd.sock",
		Unit:   s.name,
	}
	g.engineVersion(ctx, e)
	e.Files, _ = g.containerdFiles(e.Config, Globs(e.Version))
	if e.Files[0].Data == nil || slices.Contains(strings.Split(string(e.Files[0].Data), "\n"), "# k0s_managed=true") {
		e.Owner, e.Why, e.Folder = "k0s", s.name, "/etc/k0s/containerd.d"
	}
	d.engine, d.kubelet.Endpoint = e, "unix://"+e.Socket
	return d
}
