// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/platform"
)

// A distribution is a Kubernetes distribution that starts kubelet and the container engine itself.
type distribution struct {
	engine  *Engine // nil: its kubelet uses an engine of the machine's
	kubelet Kubelet
}

// KubeletUnits are the units that kubelet is, or is a part of, by the names that packages and
// installers give them.
func KubeletUnits() []string {
	units := []string{
		"kubelet.service", "k3s.service", "k3s-agent.service", "rke2-agent.service", "rke2-server.service",
		"k0sworker.service", "k0scontroller.service",
	}
	for _, p := range snaps() {
		units = append(units, p.Snap.Kubelet)
	}
	return units
}

// findDistributions finds those on this machine. Where each keeps its files was read in its own
// code and in a second source, in November 2026: k0sproject/k0s pkg/component/worker and
// docs/runtime.md; k3s-io/k3s pkg/agent and docs.k3s.io; rancher/rke2 bundle and docs.rke2.io;
// canonical/microk8s microk8s-resources and canonical/microk8s-core-addons; canonical/k8s-snap
// k8s/args and its docs. A distribution that is missing here is found on the running machine by the
// processes of its kubelet and engine (processes.go).
func (l *look) findDistributions(ctx context.Context) (found []distribution) {
	units := KubeletUnits()
	all := []*distribution{
		l.rancher(ctx, "k3s", units[1:3]...),
		l.rancher(ctx, "rke2", units[3:5]...),
		l.k0s(ctx, units[5:7]...),
	}
	for _, p := range snaps() {
		all = append(all, l.snap(ctx, p.Name, *p.Snap))
	}
	for _, d := range all {
		if d != nil {
			found = append(found, *d)
		}
	}
	return found
}

// A rancherStart is how K3s or RKE2 is started: its unit, and all places where its settings can be.
type rancherStart struct {
	name     string // k3s, rke2
	unit     string
	argv     []string
	config   string // the path of its config file
	data     string // its folder
	settings map[string][]string
	files    []File
}

// said is what a setting says, all values of a list. The command line wins over files:
// https://docs.k3s.io/installation/configuration.
func (r rancherStart) said(names ...string) []string {
	if given := Options(r.argv, names...); given != nil {
		return given
	}
	return r.settings[names[0]]
}

// last is what a setting of one value says.
func (r rancherStart) last(names ...string) string {
	all := r.said(names...)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// rancher finds K3s and RKE2, which lay out their data in the same way. The engine's config is
// rendered at each start.
// Source: pkg/agent/containerd/config.go of https://github.com/k3s-io/k3s,
// https://docs.k3s.io/advanced, https://docs.rke2.io/advanced
func (l *look) rancher(ctx context.Context, name string, units ...string) *distribution {
	home := "/var/lib/rancher/" + name
	s := l.serviceOf(ctx, name, units...)
	if s == nil && !l.has(home+"/agent") {
		return nil
	}
	r := l.rancherStart(name, home, s)
	d := &distribution{kubelet: l.rancherKubelet(r)}
	if s != nil {
		d.kubelet.Unit, d.kubelet.Active = s.name, s.active
	}
	docker := name == "k3s" && (slices.Contains(r.argv, "--docker") || r.last("docker") == "true")
	switch endpoint := r.last("container-runtime-endpoint"); {
	case docker:
		d.kubelet.Endpoint = "unix://" + k3sDocker
		return d
	case endpoint != "":
		d.kubelet.Endpoint = endpoint
		return d
	}
	bin := r.data + "/data/current/bin/"
	if name == "rke2" {
		bin = r.data + "/bin/"
		d.kubelet.Binary = l.first(bin + "kubelet")
	}
	e := &Engine{
		Name:   "containerd",
		Binary: l.first(bin + "containerd"),
		Config: r.data + "/agent/etc/containerd/config.toml",
		Owner:  name,
		Unit:   r.unit,
		Why:    cmp.Or(r.unit, home+"/agent"),
	}
	l.engineVersion(ctx, e)
	e.Files, e.Socket = l.containerdFiles(e.Config, Globs(e.Version))
	e.Socket = cmp.Or(e.Socket, "/run/k3s/containerd/containerd.sock")
	d.engine, d.kubelet.Endpoint = e, cmp.Or(d.kubelet.Endpoint, "unix://"+e.Socket)
	return d
}

// rancherStart reads all places of settings. An environment variable wins for the data folder and
// the config file; the value of a later file replaces an earlier one, unless its key ends in +.
// Sources: findDataDir in cmd/k3s/main.go, and pkg/configfilearg/parser.go, of
// https://github.com/k3s-io/k3s.
func (l *look) rancherStart(name, home string, s *service) rancherStart {
	r := rancherStart{name: name, argv: l.argv(s), settings: map[string][]string{}}
	env := map[string]string{}
	if s != nil {
		r.unit, env = s.name, l.environment(s)
	}
	variable := strings.ToUpper(name)
	r.config = cmp.Or(env[variable+"_CONFIG_FILE"], option(r.argv, "config", "c"), "/etc/rancher/"+name+"/config.yaml")
	if path.IsAbs(r.config) { // it may be an address
		r.files = []File{{r.config, l.read(r.config)}}
		for _, n := range l.folder(r.config + ".d") {
			if ext := path.Ext(n); ext == ".yaml" || ext == ".yml" {
				p := path.Join(r.config+".d", n)
				r.files = append(r.files, File{p, l.read(p)})
			}
			if len(r.files) > maxFiles {
				l.fail("read", r.config+".d", errTooManyFiles)
				break
			}
		}
	}
	for _, f := range r.files {
		r.add(f.Data)
	}
	r.data = cmp.Or(env[variable+"_DATA_DIR"], r.last("data-dir", "d"), home)
	return r
}

func (r rancherStart) add(data []byte) {
	var doc map[string]yaml.Node
	if len(data) > maxParsed || yaml.Unmarshal(data, &doc) != nil {
		return
	}
	for key, node := range doc {
		var list []string
		if node.Decode(&list) != nil {
			var one string
			if node.Decode(&one) != nil {
				continue
			}
			list = []string{one}
		}
		if name, more := strings.CutSuffix(key, "+"); more {
			r.settings[name] = append(r.settings[name], list...)
		} else {
			r.settings[key] = list
		}
	}
}

// rancherKubelet is the kubelet of K3s or RKE2. They configure it with a folder of files, and take
// labels and taints in a config of their own. Source: pkg/daemons/agent/agent_linux.go and
// pkg/agent/config/config.go of https://github.com/k3s-io/k3s
func (l *look) rancherKubelet(r rancherStart) Kubelet {
	k := Kubelet{ConfigOwner: r.name, Files: r.files}
	l.mergeDir(&k, r.data+"/agent/etc/kubelet.conf.d")
	node := k.credentials(l, r.data+"/agent/kubelet.kubeconfig")
	if !l.has(k.Kubeconfig) {
		k.Kubeconfig = "" // only the data folder's own is known
	}
	k.NodeName = nodeName(cmp.Or(r.last("node-name"), node), l.hostname())
	kubelet := []string{"kubelet"}
	for _, arg := range r.said("kubelet-arg") {
		kubelet = append(kubelet, "--"+strings.TrimLeft(arg, "-"))
	}
	k.Dir = cmp.Or(option(kubelet, "root-dir"), k.Dir)
	k.Labels = labels(append(r.said("node-label"), Options(kubelet, "node-labels")...))
	k.Taints = taints(strings.Join(r.said("node-taint"), ","))
	stated := Options(kubelet, "register-with-taints")
	for _, list := range stated { // it comes after K3s's own, and wins
		k.Taints = taints(list)
	}
	dir := r.config + ".d"
	k.LabelsAt = Place{How: "drop-in", File: dir, Key: "node-label+"}
	k.TaintsAt = Place{How: "drop-in", File: dir, Key: "node-taint+"}
	switch {
	case !path.IsAbs(r.config):
		k.LabelsAt = Place{Why: r.unit + " reads its settings from " + r.config}
		k.TaintsAt = k.LabelsAt
		return k
	case len(Options(r.argv, "node-label")) > 0:
		k.LabelsAt = Place{Why: r.unit + " has --node-label on its command line, which its files cannot add to"}
	}
	switch {
	case len(stated) > 0:
		k.TaintsAt = Place{Why: r.name + " has register-with-taints in its kubelet-arg, which wins over node-taint"}
	case len(Options(r.argv, "node-taint")) > 0:
		k.TaintsAt = Place{Why: r.unit + " has --node-taint on its command line, which its files cannot add to"}
	}
	return k
}

// k0s finds a k0s that runs pods. It makes the engine's config at each start while that says so in
// a line of its own, with what it finds in a folder of additions; else the file is the
// administrator's.
// Source: pkg/component/worker/containerd and docs/runtime.md of https://github.com/k0sproject/k0s
func (l *look) k0s(ctx context.Context, units ...string) *distribution {
	s := l.service(ctx, units...)
	if s == nil {
		return nil
	}
	argv := l.argv(s)
	if slices.Contains(argv, "controller") && !slices.ContainsFunc(argv, func(a string) bool {
		return a == "--enable-worker" || a == "--enable-worker=true" || a == "--single" || a == "--single=true"
	}) {
		return nil
	}
	data := cmp.Or(option(argv, "data-dir"), "/var/lib/k0s")
	extra := append([]string{"kubelet"}, Words(option(argv, "kubelet-extra-args"))...)
	k := Kubelet{
		Unit: s.name, Active: s.active, Binary: l.first(data + "/bin/kubelet"), ConfigOwner: "k0s", Config: "/run/k0s/kubelet/config.yaml",
		Dir: cmp.Or(option(extra, "root-dir"), data+"/kubelet"),
	}
	k.merge(File{k.Config, l.read(k.Config)})
	k.NodeName = nodeName(cmp.Or(option(extra, "hostname-override"), k.credentials(l, data+"/kubelet.conf")), l.hostname())
	k.Labels, k.Taints = labels(Options(argv, "labels")), taints(option(argv, "taints"))
	k.LabelsAt = Place{Why: "k0s takes labels and taints from its own command line: k0s install worker --labels … --taints …"}
	k.TaintsAt = k.LabelsAt
	d := &distribution{kubelet: k}
	if remote, is := strings.CutPrefix(option(argv, "cri-socket"), "remote:"); is {
		d.kubelet.Endpoint = remote
		return d
	}
	e := &Engine{
		Name: "containerd", Binary: l.first(data + "/bin/containerd"), Config: "/etc/k0s/containerd.toml", Socket: "/run/k0s/containerd.sock", Unit: s.name,
	}
	l.engineVersion(ctx, e)
	e.Files, _ = l.containerdFiles(e.Config, Globs(e.Version))
	if e.Files[0].Data == nil || slices.Contains(strings.Split(string(e.Files[0].Data), "\n"), "# k0s_managed=true") {
		e.Owner, e.Why, e.Folder = "k0s", s.name, "/etc/k0s/containerd.d"
	}
	d.engine, d.kubelet.Endpoint = e, "unix://"+e.Socket
	return d
}

// snaps are the platforms that are one.
func snaps() []platform.Platform {
	return slices.DeleteFunc(platform.All(), func(p platform.Platform) bool { return p.Snap == nil })
}

// snap finds a Kubernetes distribution that is a snap.
func (l *look) snap(ctx context.Context, name string, at platform.Snap) *distribution {
	s, runs := l.service(ctx, at.Engine), l.service(ctx, at.Kubelet)
	if s == nil {
		return nil
	}
	args, kubeletUnit := at.Args, at.Kubelet
	program := l.first("/snap/"+name+"/current", "/var/lib/snapd/snap/"+name+"/current")
	variables := []string{"${SNAP}", program, "${SNAP_DATA}", "/var/snap/" + name + "/current", "${SNAP_COMMON}", "/var/snap/" + name + "/common"}
	given := func(daemon string) []string {
		return append([]string{daemon}, Words(strings.NewReplacer(variables...).Replace(string(l.read(args+"/"+daemon))))...)
	}
	argv := given("containerd")
	e := &Engine{
		Name: "containerd", Binary: l.first(program + "/bin/containerd"), Unit: s.name,
		Config: cmp.Or(l.first(args+"/containerd-template.toml"), option(argv, "config", "c"), containerdDefault),
	}
	l.engineVersion(ctx, e)
	e.Files, e.Socket = l.containerdFiles(e.Config, Globs(e.Version))
	e.Expands = append(variables, "${RUNTIME}", "runc", "${RUNTIME_TYPE}", "io.containerd.runc.v2", "${SNAPSHOTTER}", "overlayfs")
	e.Socket = cmp.Or(option(argv, "address", "a"), e.Socket, "/run/containerd/containerd.sock")
	flags := given("kubelet")
	k := Kubelet{Binary: l.first(program+"/kubelet", program+"/bin/kubelet"), Unit: kubeletUnit, ConfigOwner: name, Dir: option(flags, "root-dir"), Files: []File{{Path: args + "/kubelet"}}}
	if runs != nil {
		k.Active = runs.active
	}
	l.kubeletConfig(&k, flags)
	k.NodeName = nodeName(cmp.Or(option(flags, "hostname-override"), k.credentials(l, option(flags, "kubeconfig"))), l.hostname())
	k.Labels, k.Taints = labels(Options(flags, "node-labels")), taints(option(flags, "register-with-taints"))
	k.LabelsAt = Place{Why: "the snap " + name + " reads kubelet's arguments from " + args + "/kubelet, which is its own"}
	k.TaintsAt = k.LabelsAt
	k.Endpoint = cmp.Or(k.Endpoint, "unix://"+e.Socket)
	return &distribution{engine: e, kubelet: k}
}
