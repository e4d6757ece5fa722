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
	if slices.Contains(argv, "controller") && !runsWorker(argv) {
		return nil
	}

	data := cmp.Or(option(argv, "data-dir"), "/var/lib/k0s")
	d := &distribution{kubelet: g.k0sKubelet(s, argv, data)}
	if remote, ok := strings.CutPrefix(option(argv, "cri-socket"), "remote:"); ok {
		d.kubelet.Endpoint = remote
		return d
	}

	e := &Engine{
		Name:   "containerd",
		Binary: g.first(data + "/bin/containerd"),
		Config: "/etc/k0s/containerd.toml",
		Socket: "/run/k0s/containerd.sock",
		Unit:   s.name,
		Child:  true,
	}
	g.engineVersion(ctx, e)
	e.Files, _ = g.containerdFiles(e.Config, Globs(e.Version))
	config := e.Files[0].Data
	if config == nil || slices.Contains(strings.Split(string(config), "\n"), "# k0s_managed=true") {
		e.Owner = "k0s"
		e.Why = s.name
		e.Folder = "/etc/k0s/containerd.d"
	}

	d.engine = e
	d.kubelet.Endpoint = "unix://" + e.Socket
	return d
}

// runsWorker says whether a controller of k0s runs pods, too.
func runsWorker(argv []string) bool {
	return slices.ContainsFunc(argv, func(arg string) bool {
		flag := strings.TrimSuffix(arg, "=true")
		return flag == "--enable-worker" || flag == "--single"
	})
}

// k0sKubelet is the kubelet that k0s starts, by the command line of k0s.
func (g *gathering) k0sKubelet(s *service, argv []string, data string) Kubelet {
	extra := append([]string{"kubelet"}, Words(option(argv, "kubelet-extra-args"))...)
	k := Kubelet{
		Unit:        s.name,
		Active:      s.active,
		Binary:      g.first(data + "/bin/kubelet"),
		ConfigOwner: "k0s",
		Config:      "/run/k0s/kubelet/config.yaml",
		Dir:         cmp.Or(option(extra, "root-dir"), data+"/kubelet"),
	}
	k.merge(File{Path: k.Config, Data: g.read(k.Config)})

	certified := k.credentials(g, data+"/kubelet.conf")
	k.NodeName = nodeName(cmp.Or(option(extra, "hostname-override"), certified), g.hostname())
	k.Labels = labels(Options(argv, "labels"))
	k.Taints = taints(option(argv, "taints"))
	k.LabelsAt = Place{Why: "k0s takes labels and taints from its own command line: k0s install worker --labels … --taints …"}
	k.TaintsAt = k.LabelsAt
	return k
}
