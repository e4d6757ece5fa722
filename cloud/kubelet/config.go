// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// table is a JSON object.
type table = map[string]any

// config returns the whole KubeletConfiguration: gpuadm's keys, then the join's, then those of the
// user's file.
func (k Own) config(s spec.Spec, f facts.Facts, e facts.Engine) (table, error) {
	base := table{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": table{
			"anonymous": table{"enabled": false},
			"webhook":   table{"enabled": true},
			"x509":      table{"clientCAFile": ClusterCA},
		},
		"authorization":            table{"mode": "Webhook"},
		"cgroupDriver":             cgroupDriver(e),
		"containerRuntimeEndpoint": endpoint(e),
	}
	// In a pod loopback is the pod's own:
	// https://kubernetes.io/docs/tasks/administer-cluster/dns-debugging-resolution/#known-issues
	if strings.Contains(string(f.Files["/etc/resolv.conf"]), "nameserver 127.0.0.53") {
		base["resolvConf"] = "/run/systemd/resolve/resolv.conf"
	}
	var last table
	if name := s.Join.KubeletConfig; name != "" {
		var err error
		if last, err = readKubeletConfig(name, f.Files[name]); err != nil {
			return nil, err
		}
	}
	return withTaints(merge(base, k.Config), last, k.Taints), nil
}

// withTaints puts the user's keys over the others, and adds the taints to both: a later list
// replaces an earlier one, and a lost taint would let pods in too early.
func withTaints(base, last table, taints []spec.Taint) table {
	for _, over := range []table{nil, last} {
		base = merge(base, over)
		if list := taintList(taints, listOf(base["registerWithTaints"])); len(list) > 0 {
			base["registerWithTaints"] = list
		}
	}
	return base
}

// readKubeletConfig reads the user's file, YAML or JSON.
func readKubeletConfig(name string, data []byte) (table, error) {
	const fix = "write kubelet_config = PATH in [join], the path of a KubeletConfiguration in YAML or JSON with the keys that differ"
	if path.Clean(name) == ConfigFile {
		return nil, &trouble.Error{What: fmt.Sprintf("cannot use %s as kubelet_config: gpuadm writes that file", name), Try: []string{"write the keys that differ into another file, such as /etc/gpuadm/kubelet.yaml"}}
	}
	if data == nil {
		return nil, &trouble.Error{What: fmt.Sprintf("cannot read %s: not found", name), Try: []string{fix}}
	}
	var t table
	if len(data) > 1<<20 {
		return nil, &trouble.Error{What: fmt.Sprintf("cannot use %s: it is larger than 1 MiB", name), Try: []string{fix}}
	}
	if err := yaml.Unmarshal(data, &t); err != nil {
		return nil, &trouble.Error{What: fmt.Sprintf("cannot use %s: it is no KubeletConfiguration: %v", name, strings.Join(strings.Fields(err.Error()), " ")), Try: []string{fix}}
	}
	if kind, stated := t["kind"]; stated && kind != "KubeletConfiguration" {
		return nil, &trouble.Error{What: fmt.Sprintf("cannot use %s: its kind is %v, not KubeletConfiguration", name, kind), Try: []string{fix}}
	}
	return t, nil
}

// merge puts patch over onto, as a JSON merge patch (RFC 7396): tables merge, null removes, all
// else replaces.
func merge(onto, patch table) table {
	out := maps.Clone(onto)
	if out == nil {
		out = table{}
	}
	for key, value := range patch {
		inner, is := value.(table)
		switch {
		case value == nil:
			delete(out, key)
		case is:
			below, _ := out[key].(table)
			out[key] = merge(below, inner)
		default:
			out[key] = value
		}
	}
	return out
}

// taintList adds taints to a list of a KubeletConfiguration; a taint in the list with the same key
// and effect stays.
func taintList(taints []spec.Taint, list []any) []any {
	list = slices.Clone(list)
	for _, t := range taints {
		if !slices.ContainsFunc(list, func(at any) bool {
			is, _ := at.(table)
			return is["key"] == t.Key && is["effect"] == t.Effect
		}) {
			one := table{"key": t.Key, "effect": t.Effect}
			if t.Value != "" {
				one["value"] = t.Value
			}
			list = append(list, one)
		}
	}
	return list
}

func listOf(value any) []any {
	list, _ := value.([]any)
	return list
}

// Reserved returns the resources of the machine that are reserved from pods, for a number of pods.
// CPU by the steps that GKE and EKS share: 6 % of the first core, 1 % of the second, 0.5 % of the
// next two, 0.25 % of the rest. Memory as in EKS, 11 MiB for each pod and 255 MiB. nil if the
// machine is not known.
// Source: https://github.com/awslabs/amazon-eks-ami, nodeadm/internal/kubelet/config.go.
func Reserved(f facts.Facts, pods int) table {
	if f.CPUs == 0 || f.Memory == 0 {
		return nil
	}
	cores := func(from, to int) int { return max(0, min(f.CPUs, to)-from) }
	hundredths := 6000*cores(0, 1) + 1000*cores(1, 2) + 500*cores(2, 4) + 250*cores(4, f.CPUs) // of a millicore
	return table{"cpu": fmt.Sprintf("%dm", hundredths/100), "memory": fmt.Sprintf("%dMi", 11*pods+255), "ephemeral-storage": "1Gi"}
}

// cgroupDriver returns the cgroup driver in the engine's configuration. Kubelet must use the same;
// kubelets from 1.34 on ask the engine itself:
// https://kubernetes.io/docs/setup/production-environment/container-runtimes/#cgroup-drivers.
func cgroupDriver(e facts.Engine) string {
	if e.Name == "crio" {
		for _, f := range e.Files {
			var c struct {
				Crio struct {
					Runtime struct {
						Manager string `toml:"cgroup_manager"`
					}
				}
			}
			if toml.Unmarshal(f.Data, &c) == nil && c.Crio.Runtime.Manager == "cgroupfs" {
				return "cgroupfs"
			}
		}
		return "systemd" // CRI-O's default
	}
	driver := "cgroupfs" // containerd's default
	for _, f := range e.Files {
		var t table
		if toml.Unmarshal(f.Data, &t) != nil {
			continue
		}
		// The first name is that of format 2 and before, the second that of format 3: containerd,
		// docs/cri/config.md.
		for _, plugin := range []string{"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"} {
			switch at(t, "plugins", plugin, "containerd", "runtimes", "runc", "options", "SystemdCgroup") {
			case true:
				driver = "systemd"
			case false:
				driver = "cgroupfs"
			}
		}
	}
	return driver
}

// at returns a value in nested tables, nil if there is none.
func at(t any, keys ...string) any {
	for _, key := range keys {
		is, _ := t.(table)
		t = is[key]
	}
	return t
}
