// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"cmp"
	"encoding/json"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxParsed is the size in bytes above which a config file of kubelet's is taken for broken. Real
// ones have a few thousand.
const maxParsed = 1 << 20

// kubeletConfig reads the config file, then the drop-ins that kubelet merges over it: the folder
// that --config-dir names.
func (g *gathering) kubeletConfig(k *Kubelet, argv []string) {
	k.Config = option(argv, "config")
	if k.Config == "" {
		k.Config = g.first("/var/lib/kubelet/config.yaml") // kubeadm's place
	}
	if k.Config != "" {
		k.merge(File{k.Config, g.read(k.Config)})
	}
	if len(argv) > 0 && option(argv, "config") == "" {
		k.Taints, k.TaintsAt.Others = nil, nil // kubelet reads only the files that its command line names
	}
	if dir := option(argv, "config-dir"); dir != "" {
		g.mergeDir(k, dir)
	}
	// Flags win over files:
	// https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/
	k.CgroupDriver = cmp.Or(option(argv, "cgroup-driver"), k.CgroupDriver)
	k.Endpoint = cmp.Or(option(argv, "container-runtime-endpoint"), k.Endpoint)
}

// mergeDir reads the drop-ins of a folder in the order of their names, those that end in .conf.
func (g *gathering) mergeDir(k *Kubelet, dir string) {
	for _, f := range g.walk(dir, 0) {
		if strings.HasSuffix(f, ".conf") {
			k.merge(File{f, g.read(f)})
		}
	}
}

// merge takes what a KubeletConfiguration says over what was known before, as a merge patch (RFC
// 7396): lists are replaced, null takes them away. Source: mergeKubeletConfigurations in
// cmd/kubelet/app/server.go of Kubernetes.
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

// configTaints notes the taints that a config file names. It leaves out those that kubelet would
// refuse.
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

// document reads a config file in JSON or YAML; a broken one says nothing, since kubelet refuses
// it.
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
