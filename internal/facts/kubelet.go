// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxParsed is the size in bytes above which a config file of kubelet's is taken for broken. Real ones have a few thousand.
const maxParsed = 1 << 20

// kubelet is what is known of kubelet from its unit, its command line and its config files.
func (l *look) kubelet(ctx context.Context, engines []Engine) Kubelet {
	k := Kubelet{Binary: l.first("/usr/bin/kubelet", "/usr/local/bin/kubelet", "/opt/bin/kubelet", "/home/kubernetes/bin/kubelet")}
	s := l.service(ctx, "kubelet.service")
	if s == nil && k.Binary == "" {
		return l.embeddedKubelet(engines)
	}
	c := kubeletCommand{service: s}
	if s != nil {
		k.Unit, k.Active = s.name, s.active
		for _, line := range s.requires {
			k.Requires = append(k.Requires, strings.Fields(line)...)
		}
		c.environ = l.environ(s)
		if len(s.start) > 0 {
			c.argv, c.from = traced(s.start[0], func() map[string]string { return c.values })
		}
		if len(c.argv) == 0 || path.Base(c.argv[0]) != "kubelet" {
			c.argv, c.from = nil, nil // a wrapper's
		} else if path.IsAbs(c.argv[0]) && l.has(c.argv[0]) {
			k.Binary = c.argv[0]
		}
	}
	k.Files = c.environ.files
	k.ConfigOwner = configOwner(c, engines)
	l.kubeletConfig(&k, c.argv)
	k.credentials(l, option(c.argv, "kubeconfig"))
	k.NodeName = nodeName(option(c.argv, "hostname-override"), l.hostname())
	k.flags(c)
	if k.Binary != "" {
		// It is not run to tell its version: that takes longer than all else here.
		k.Version = l.version(ctx, k.Binary, program{packages: []string{"kubelet"}, module: "k8s.io/kubernetes"})
	}
	return k
}

// kubeletCommand is kubelet's command line and where each of its arguments comes from.
type kubeletCommand struct {
	*service
	environ
	argv []string // nil if the unit starts something else
	from []string // the variable that each came from; "" = the unit's own text
}

// kubeletConfig reads the config file, then the folder of files that are merged over it.
func (l *look) kubeletConfig(k *Kubelet, argv []string) {
	k.Config = option(argv, "config")
	if k.Config == "" {
		k.Config = l.first("/var/lib/kubelet/config.yaml") // kubeadm's place
	}
	if k.Config != "" {
		k.merge(File{k.Config, l.read(k.Config)})
	}
	if len(argv) > 0 && option(argv, "config") == "" {
		k.Taints, k.TaintsAt.Others = nil, nil // a kubelet reads no file that its command line does not name
	}
	if dir := option(argv, "config-dir"); dir != "" {
		l.mergeDir(k, dir)
	}
	// Flags win over files: https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/
	k.CgroupDriver = cmp.Or(option(argv, "cgroup-driver"), k.CgroupDriver)
	k.Endpoint = cmp.Or(option(argv, "container-runtime-endpoint"), k.Endpoint)
}

// configOwner says who writes the files of a kubelet that has a unit of its own.
func configOwner(c kubeletCommand, engines []Engine) string {
	for _, f := range c.environ.files {
		switch f.Path {
		case "/var/lib/kubelet/kubeadm-flags.env": // by its 10-kubeadm.conf
			return "kubeadm"
		case "/etc/eks/kubelet/environment":
			return "nodeadm"
		}
	}
	for _, e := range engines {
		if slices.Contains([]string{"nodeadm", "aks", "gke"}, e.Owner) {
			return e.Owner
		}
	}
	return ""
}

// nodeName is what kubelet calls its node: GetHostname in pkg/util/node of Kubernetes.
func nodeName(override, hostname string) string {
	return strings.ToLower(cmp.Or(strings.TrimSpace(override), hostname))
}

// mergeDir reads a folder of config files by name, those that end in .conf.
func (l *look) mergeDir(k *Kubelet, dir string) {
	for _, f := range l.walk(dir, 0) {
		if strings.HasSuffix(f, ".conf") {
			k.merge(File{f, l.read(f)})
		}
	}
}

// merge takes what a KubeletConfiguration says over what was known before, as a merge patch (RFC 7396): lists are replaced,
// null takes them away. Source: mergeKubeletConfigurations in cmd/kubelet/app/server.go of Kubernetes.
func (k *Kubelet) merge(f File) {
	k.Files = append(k.Files, f)
	settings := document(f.Data)
	k.CgroupDriver = cmp.Or(settings.text("cgroupDriver"), k.CgroupDriver)
	k.Endpoint = cmp.Or(settings.text("containerRuntimeEndpoint"), k.Endpoint)
	if list, stated := settings[taintsKey]; stated {
		k.configTaints(f.Path, list)
	}
}

// taintsKey is where a KubeletConfiguration has the taints that the node registers with.
const taintsKey = "registerWithTaints"

// configTaints notes what a config file says of taints. What kubelet would refuse are no taints.
func (k *Kubelet) configTaints(file string, said any) {
	list, _ := said.([]any)
	k.Taints = nil
	for _, one := range list {
		taint, _ := one.(map[string]any)
		if t := settings(taint); t.text("key") != "" {
			k.Taints = append(k.Taints, Taint{t.text("key"), t.text("value"), t.text("effect")})
		}
	}
	if path.Base(file) != OwnConf {
		k.TaintsAt.Others = k.Taints
	}
}

// settings are what a config file says at its outermost level.
type settings map[string]any

// text is the value of a key, "" where that is no text.
func (s settings) text(key string) string {
	text, _ := s[key].(string)
	return text
}

// document reads a config file in JSON or YAML; a broken one says nothing, as its reader refuses it.
func document(data []byte) settings {
	data = bytes.TrimSpace(data)
	var s map[string]any // YAML gives tables within the type of this one
	parse := yaml.Unmarshal
	if bytes.HasPrefix(data, []byte("{")) {
		parse = json.Unmarshal
	}
	if len(data) > maxParsed || parse(data, &s) != nil {
		return nil
	}
	return s
}

// rancherStart is how K3s or RKE2 is started.
type rancherStart struct {
	name     string // k3s, rke2
	active   string
	argv     []string
	data     string // its folder
	settings File   // its config file
}

// embeddedKubelet is the kubelet that is a part of K3s or RKE2. They configure it with a folder of files, and take
// labels and taints in a config of their own.
func (l *look) embeddedKubelet(engines []Engine) Kubelet {
	var k Kubelet
	for _, e := range engines {
		if e.Owner != "k3s" && e.Owner != "rke2" {
			continue
		}
		start := l.ranchers[e.Owner]
		k.Unit, k.Active, k.ConfigOwner = e.Unit, start.active, e.Owner
		l.mergeDir(&k, start.data+"/agent/etc/kubelet.conf.d")
		k.Endpoint = cmp.Or(k.Endpoint, "unix://"+e.Socket)
		if e.Owner == "rke2" {
			k.Binary = l.first(start.data + "/bin/kubelet")
		}
		l.rancherNode(&k, start)
		break
	}
	return k
}

// rancherNode tells what K3s or RKE2 will register its node with.
// Source: pkg/daemons/agent/agent_linux.go and pkg/agent/config/config.go of https://github.com/k3s-io/k3s
func (l *look) rancherNode(k *Kubelet, start rancherStart) {
	// Only the data folder's own kubeconfig is known, and named so.
	node := k.credentials(l, start.data+"/agent/kubelet.kubeconfig")
	if !l.has(k.Kubeconfig) {
		k.Kubeconfig = ""
	}
	settings := l.rancherSettings(k, start.settings)
	say := func(name string) []string {
		if given := Options(start.argv, name); given != nil {
			return given // the command line wins over files, lists and all: https://docs.k3s.io/installation/configuration
		}
		return settings[name]
	}
	k.NodeName = nodeName(node, l.hostname())
	if names := say("node-name"); len(names) > 0 {
		k.NodeName = nodeName(names[len(names)-1], k.NodeName)
	}
	var kubelet []string
	for _, arg := range say("kubelet-arg") {
		kubelet = append(kubelet, "--"+strings.TrimLeft(arg, "-"))
	}
	kubelet = append([]string{"kubelet"}, kubelet...)
	k.Labels = labels(append(say("node-label"), Options(kubelet, "node-labels")...))
	k.Taints = taints(strings.Join(say("node-taint"), ","))
	for _, list := range Options(kubelet, "register-with-taints") { // it comes after K3s's own, and wins
		k.Taints = taints(list)
	}
	dir := start.settings.Path + ".d"
	k.LabelsAt = Place{How: "drop-in", File: dir, Key: "node-label+"}
	k.TaintsAt = Place{How: "drop-in", File: dir, Key: "node-taint+"}
	if len(Options(start.argv, "node-label")) > 0 {
		k.LabelsAt = Place{Why: k.Unit + " has --node-label on its command line, which its files cannot add to"}
	}
	switch {
	case len(Options(kubelet, "register-with-taints")) > 0:
		k.TaintsAt = Place{Why: start.name + " has register-with-taints in its kubelet-arg, which wins over node-taint"}
	case len(Options(start.argv, "node-taint")) > 0:
		k.TaintsAt = Place{Why: k.Unit + " has --node-taint on its command line, which its files cannot add to"}
	}
}

// rancherSettings reads the config file, then those of the folder beside it by name. A later file's value replaces an
// earlier one, unless its key ends in +. Source: pkg/configfilearg/parser.go of https://github.com/k3s-io/k3s
func (l *look) rancherSettings(k *Kubelet, first File) map[string][]string {
	files := []File{first}
	for _, name := range l.folder(first.Path + ".d") {
		if ext := path.Ext(name); ext == ".yaml" || ext == ".yml" {
			p := path.Join(first.Path+".d", name)
			files = append(files, File{p, l.read(p)})
		}
		if len(files) > maxFiles {
			l.fail("read", first.Path+".d", errTooManyFiles)
			break
		}
	}
	k.Files = append(files, k.Files...)
	settings := map[string][]string{}
	for _, f := range files {
		var doc map[string]yaml.Node
		if len(f.Data) > maxParsed || yaml.Unmarshal(f.Data, &doc) != nil {
			continue
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
				settings[name] = append(settings[name], list...)
			} else {
				settings[key] = list
			}
		}
	}
	return settings
}
