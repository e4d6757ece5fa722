// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

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
	base = merge(base, k.Config)

	var users table
	if name := s.Join.KubeletConfig; name != "" {
		if why := f.NoFiles[name]; why != "" {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot use %s as kubelet_config: %s", name, why),
				Try:  []string{"name another file with kubelet_config in [join]"},
				Keys: []string{"join.kubelet_config"},
			}
		}

		read, err := readKubeletConfig(name, f.Files[name])
		if err != nil {
			return nil, trouble.WithKeys(err, "join.kubelet_config")
		}
		users = read
	}

	return withTaints(base, users, k.Taints), nil
}

// withTaints puts the user's keys over the others, and adds the taints to both: a later list
// replaces an earlier one, and a lost taint would let pods in too early.
func withTaints(base, users table, taints []spec.Taint) table {
	for _, over := range []table{nil, users} {
		base = merge(base, over)
		list := taintList(taints, listOf(base[confTaints]))
		if len(list) > 0 {
			base[confTaints] = list
		}
	}
	return base
}

// maxKubeletConfig is the largest size in bytes of the user's file.
const maxKubeletConfig = 1 << 20

// CheckConfig says why a file cannot be used as kubelet_config; nil if it can.
func CheckConfig(name string, data []byte) error {
	_, err := readKubeletConfig(name, data)
	return err
}

// readKubeletConfig reads the user's file, YAML or JSON.
func readKubeletConfig(name string, data []byte) (table, error) {
	if path.Clean(name) == ConfigFile {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot use %s as kubelet_config: gpuadm writes that file", name),
			Try:  []string{"write the keys that differ into another file, such as /etc/gpuadm/kubelet.yaml"},
		}
	}

	refuse := func(what string) error {
		const fix = "write kubelet_config = PATH in [join], the path of a KubeletConfiguration in YAML or JSON with the keys that differ"
		return &trouble.Error{What: what, Try: []string{fix}}
	}

	if data == nil {
		return nil, refuse(fmt.Sprintf("cannot read %s: not found", name))
	}
	if len(data) > maxKubeletConfig {
		return nil, refuse(fmt.Sprintf("cannot use %s: it is larger than 1 MiB", name))
	}

	var config table
	if err := yaml.Unmarshal(data, &config); err != nil {
		cause := strings.Join(strings.Fields(err.Error()), " ")
		return nil, refuse(fmt.Sprintf("cannot use %s: it is not a KubeletConfiguration: %v", name, cause))
	}
	kind, stated := config["kind"]
	if stated && kind != "KubeletConfiguration" {
		return nil, refuse(fmt.Sprintf("cannot use %s: its kind is %v, not KubeletConfiguration", name, kind))
	}
	return config, nil
}

// merge puts patch over onto, as a JSON merge patch (RFC 7396): tables merge, null removes, all
// else replaces.
func merge(onto, patch table) table {
	merged := maps.Clone(onto)
	if merged == nil {
		merged = table{}
	}

	for key, value := range patch {
		inner, isTable := value.(table)
		switch {
		case value == nil:
			delete(merged, key)
		case isTable:
			below, _ := merged[key].(table)
			merged[key] = merge(below, inner)
		default:
			merged[key] = value
		}
	}

	return merged
}

// taintList adds taints to a list of a KubeletConfiguration; a taint in the list with the same key
// and effect stays.
func taintList(taints []spec.Taint, list []any) []any {
	list = slices.Clone(list)
	for _, t := range taints {
		same := func(item any) bool {
			present, _ := item.(table)
			return present["key"] == t.Key && present["effect"] == t.Effect
		}

		if slices.ContainsFunc(list, same) {
			continue
		}

		taint := table{"key": t.Key, "effect": t.Effect}
		if t.Value != "" {
			taint["value"] = t.Value
		}
		list = append(list, taint)
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
	hundredths := 6000*cores(0, 1) + // of a millicore
		1000*cores(1, 2) +
		500*cores(2, 4) +
		250*cores(4, f.CPUs)
	return table{
		"cpu":               fmt.Sprintf("%dm", hundredths/100),
		"memory":            fmt.Sprintf("%dMi", 11*pods+255),
		"ephemeral-storage": "1Gi",
	}
}
