// SPDX-License-Identifier: Apache-2.0

package kubelet

import "go.yaml.in/yaml/v3"

// Plugin is the program that a kubelet calls for a token: gpuadm.
const Plugin = "/usr/local/sbin/gpuadm"

// LoginFile returns the kubeconfig of a kubelet that calls gpuadm token, with the arguments given,
// whenever it needs a token. The file has no secret.
func LoginFile(server string, token ...string) []byte {
	named := func(kind, name string, value map[string]any) []any {
		return []any{map[string]any{"name": name, kind: value}}
	}
	cluster := map[string]any{
		"server":                server,
		"certificate-authority": ClusterCA,
	}
	exec := map[string]any{
		"apiVersion":      "client.authentication.k8s.io/v1", // kubelets from 1.22 on
		"command":         Plugin,
		"args":            append([]string{"token"}, token...),
		"interactiveMode": "Never",
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "node",
		"clusters":        named("cluster", "cluster", cluster),
		"users":           named("user", "node", map[string]any{"exec": exec}),
		"contexts":        named("context", "node", map[string]any{"cluster": "cluster", "user": "node"}),
	})
	if err != nil {
		return nil // maps of strings can be written
	}
	return append([]byte(Written), text...)
}
