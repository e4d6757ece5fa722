// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
)

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
		k.Endpoint = or(k.Endpoint, "unix://"+e.Socket)
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
