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
	s := l.service(ctx, "kubelet.service")
	if s == nil && len(l.distributions) > 0 {
		i := slices.IndexFunc(l.distributions, func(d distribution) bool { return d.kubelet.Active == "active" })
		return l.distributions[max(i, 0)].kubelet
	}
	k := Kubelet{Binary: l.first("/usr/bin/kubelet", "/usr/local/bin/kubelet", "/opt/bin/kubelet", "/home/kubernetes/bin/kubelet")}
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
		i := slices.IndexFunc(c.argv, func(word string) bool { return path.Base(word) == "kubelet" })
		if i > 0 && !(path.IsAbs(c.argv[i]) && l.has(c.argv[i])) {
			i = -1
		}
		if i < 0 {
			c.argv, c.from = nil, nil // a wrapper's, which names no kubelet
		} else if c.argv, c.from = c.argv[i:], c.from[i:]; path.IsAbs(c.argv[0]) && l.has(c.argv[0]) {
			k.Binary = c.argv[0]
		}
	} else if l.v.Live() {
		if pid := l.process("kubelet"); pid != "" { // of a distribution that is not known
			c.argv, k.Unit = l.commandOf(pid)
			c.from, k.Active = make([]string, len(c.argv)), "active"
			k.Binary, _ = l.v.Readlink("/proc/" + pid + "/exe")
		}
	}
	if s == nil && k.Binary == "" {
		return k
	}
	k.Dir = option(c.argv, "root-dir")
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
