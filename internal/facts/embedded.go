// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"path"
	"slices"
)

// embedded finds the containerds that Kubernetes distributions bring along and configure themselves.
func (l *look) embedded(ctx context.Context) []Engine {
	var found []Engine
	for _, e := range [...]*Engine{
		l.rancher(ctx, "k3s", []string{"k3s.service", "k3s-agent.service"}),
		l.rancher(ctx, "rke2", []string{"rke2-agent.service", "rke2-server.service"}),
	} {
		if e != nil {
			found = append(found, *e)
		}
	}
	return found
}

// rancher finds K3s and RKE2, which lay out their data in the same way. The config is rendered at each start.
// Source: pkg/agent/containerd/config.go of https://github.com/k3s-io/k3s, https://docs.k3s.io/advanced, https://docs.rke2.io/advanced
func (l *look) rancher(ctx context.Context, name string, units []string) *Engine {
	s := l.service(ctx, units...)
	if s == nil && !l.has("/var/lib/rancher/"+name+"/agent") {
		return nil
	}
	argv := l.argv(s)
	config := File{Path: or(option(argv, "config", "c"), "/etc/rancher/"+name+"/config.yaml")}
	config.Data = l.read(config.Path)
	settings := string(config.Data)
	if or(option(argv, "container-runtime-endpoint"), topLevel(settings, "container-runtime-endpoint")) != "" || slices.Contains(argv, "--docker") {
		return nil // it uses an engine of the machine's instead
	}
	data := or(option(argv, "data-dir", "d"), topLevel(settings, "data-dir"), "/var/lib/rancher/"+name)
	bin := data + "/data/current/bin/"
	if name == "rke2" {
		bin = data + "/bin/"
	}
	e := &Engine{
		Name:   "containerd",
		Binary: l.first(bin + "containerd"),
		Config: data + "/agent/etc/containerd/config.toml",
		Owner:  name,
	}
	start := rancherStart{name: name, argv: argv, data: data, settings: config}
	if s != nil {
		e.Unit, e.Why = s.name, s.name
		start.active = s.active
	} else {
		e.Why = "/var/lib/rancher/" + name + "/agent"
	}
	if l.ranchers == nil {
		l.ranchers = map[string]rancherStart{}
	}
	l.ranchers[name] = start
	l.engineVersion(ctx, e)
	l.containerdConfig(e)
	for _, name := range []string{"config-v3.toml.tmpl", "config.toml.tmpl"} { // the first that is there is used
		p := path.Join(path.Dir(e.Config), name)
		e.Templates = append(e.Templates, File{p, l.read(p)})
	}
	e.Socket = or(e.Socket, "/run/k3s/containerd/containerd.sock")
	return e
}
