// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"context"
	"path"
	"strings"
)

// embedded finds the containerds that Kubernetes distributions bring along and configure themselves.
func (l *look) embedded(ctx context.Context) []Engine {
	var found []Engine
	for _, e := range [...]*Engine{
		l.rancher(ctx, "k3s", []string{"k3s.service", "k3s-agent.service"}),
		l.rancher(ctx, "rke2", []string{"rke2-agent.service", "rke2-server.service"}),
		l.k0s(ctx),
		l.microk8s(ctx),
	} {
		if e != nil {
			found = append(found, *e)
		}
	}
	return found
}

// rancher finds K3s and RKE2, which lay out their data in the same way. The config is rendered at each start from a
// template; newer versions' configs import a folder beside it.
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
	if or(option(argv, "container-runtime-endpoint"), topLevel(settings, "container-runtime-endpoint")) != "" || hasWord(argv, "--docker") {
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
	root := l.containerdConfig(e)
	e.Socket = or(e.Socket, "/run/k3s/containerd/containerd.sock")
	e.Edit = rancherEdit(path.Dir(e.Config), root)
	l.engineVersion(ctx, e)
	return e
}

// rancherEdit tells where users may say more than the rendered config does: in the folder it imports, or in the template
// of its version.
func rancherEdit(dir string, rendered containerdConfig) string {
	for _, p := range absolute(dir+"/config.toml", rendered.Imports) {
		if strings.HasPrefix(p, dir+"/") && strings.HasSuffix(p, "/*.toml") {
			return path.Dir(p)
		}
	}
	if v, ok := rendered.Version.(int64); ok && v < 3 {
		return dir + "/config.toml.tmpl"
	}
	return dir + "/config-v3.toml.tmpl"
}

// k0s finds k0s, which rewrites its config as long as a comment in it says that it may, and reads a folder beside it.
// Source: https://docs.k0sproject.io/stable/runtime/
func (l *look) k0s(ctx context.Context) *Engine {
	s := l.service(ctx, "k0sworker.service", "k0scontroller.service")
	e := &Engine{Name: "containerd", Config: "/etc/k0s/containerd.toml", Binary: l.first("/var/lib/k0s/bin/containerd")}
	if s == nil && e.Binary == "" && !l.has(e.Config) {
		return nil
	}
	if s != nil {
		e.Unit = s.name
	}
	l.containerdConfig(e)
	e.Socket = or(e.Socket, "/run/k0s/containerd.sock")
	l.engineVersion(ctx, e)
	if d := e.Files[0].Data; d == nil || bytes.Contains(d, []byte("k0s_managed=true")) {
		e.Owner, e.Why, e.Edit = "k0s", or(e.Unit, e.Binary, e.Config), "/etc/k0s/containerd.d"
	}
	return e
}

// microk8s finds MicroK8s, whose snap renders its config from a template at each start.
// Source: microk8s-resources/default-args of https://github.com/canonical/microk8s
func (l *look) microk8s(ctx context.Context) *Engine {
	const args = "/var/snap/microk8s/current/args"
	if !l.has(args) {
		return nil
	}
	e := &Engine{
		Name:   "containerd",
		Binary: l.first("/snap/microk8s/current/bin/containerd"),
		Config: args + "/containerd.toml",
		Owner:  "microk8s",
		Why:    args,
		Edit:   args + "/containerd-template.toml",
	}
	if s := l.service(ctx, "snap.microk8s.daemon-containerd.service"); s != nil {
		e.Unit = s.name
	}
	l.containerdConfig(e)
	e.Socket = or(e.Socket, "/var/snap/microk8s/common/run/containerd.sock")
	l.engineVersion(ctx, e)
	return e
}

func hasWord(argv []string, word string) bool {
	for _, a := range argv {
		if a == word {
			return true
		}
	}
	return false
}
