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

// maxParsed is the size in bytes above which a config file counts as broken. Real files have a few
// thousand.
const maxParsed = 1 << 20

// kubeletConfig reads the config file, then the drop-ins that kubelet merges over it: the folder
// that --config-dir names. kubelet reads only the files that its command line names; where that is
// not known, the file is kubeadm's.
func (g *gathering) kubeletConfig(k *Kubelet, argv []string) {
	k.Config = option(argv, "config")
	if len(argv) == 0 {
		k.Config = g.first("/var/lib/kubelet/config.yaml")
	}
	if k.Config != "" {
		k.merge(File{Path: k.Config, Data: g.read(k.Config)})
	}
	if dir := option(argv, "config-dir"); dir != "" {
		g.mergeDropIns(k, dir)
	}

	// Flags win over files:
	// https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/
	k.CgroupDriver = cmp.Or(option(argv, "cgroup-driver"), k.CgroupDriver)
	k.Endpoint = cmp.Or(option(argv, "container-runtime-endpoint"), k.Endpoint)
}

// mergeDropIns merges the files of a folder whose names end in .conf, in the order of the names.
func (g *gathering) mergeDropIns(k *Kubelet, dir string) {
	for _, file := range g.walk(dir, 0) {
		if strings.HasSuffix(file, ".conf") {
			k.merge(File{Path: file, Data: g.read(file)})
		}
	}
}

// merge merges a KubeletConfiguration over what was known before, as a merge patch (RFC 7396):
// lists are replaced, and null removes them.
// Source: mergeKubeletConfigurations in cmd/kubelet/app/server.go of Kubernetes.
func (k *Kubelet) merge(f File) {
	k.Files = append(k.Files, f)
	settings := parseSettings(f.Data)
	k.CgroupDriver = cmp.Or(settings.text("cgroupDriver"), k.CgroupDriver)
	k.Endpoint = cmp.Or(settings.text("containerRuntimeEndpoint"), k.Endpoint)

	value, set := settings[taintsKey]
	if !set {
		return
	}
	k.Taints = taintsOf(value)
	if path.Base(f.Path) != OwnConf {
		k.TaintsAt.Others = k.Taints
	}
}

// taintsKey is where a KubeletConfiguration has the taints that the node registers with.
const taintsKey = "registerWithTaints"

// taintsOf reads the list of taints in a config file. It leaves out those without a key, which
// kubelet would refuse.
func taintsOf(value any) (taints []Taint) {
	list, _ := value.([]any)
	for _, item := range list {
		table, _ := item.(map[string]any)
		taint := settings(table)
		key := taint.text("key")
		if key != "" {
			taints = append(taints, Taint{key, taint.text("value"), taint.text("effect")})
		}
	}

	return taints
}

// settings are the outermost keys of a config file.
type settings map[string]any

// text returns the value of a key; "" if it is not a text.
func (s settings) text(key string) string {
	text, _ := s[key].(string)
	return text
}

// parseSettings reads a config file in JSON or YAML. It returns nil for a broken file, since
// kubelet refuses it.
func parseSettings(data []byte) settings {
	data = bytes.TrimSpace(data)
	if len(data) > maxParsed {
		return nil
	}

	parse := yaml.Unmarshal
	if bytes.HasPrefix(data, []byte("{")) {
		parse = json.Unmarshal
	}
	var parsed map[string]any // with the type settings, YAML would give inner tables that type, too
	if parse(data, &parsed) != nil {
		return nil
	}
	return parsed
}
