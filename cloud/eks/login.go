// SPDX-License-Identifier: Apache-2.0

package eks

import (
	"go.yaml.in/yaml/v3"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/things"
)

// login wants kubelet to log in as the machine's role.
func (n *ownNode) login() converge.Want {
	w := things.Exact(kubelet.Kubeconfig, n.kubeconfig(), 0o600, "has kubelet log in as the machine's role")
	w.Thing = node.Login(w.Thing.(*things.FileThing))
	return w
}

// plugin is the program that kubelet calls for a token: gpuadm.
const plugin = "/usr/local/sbin/gpuadm"

// kubeconfig makes kubelet call gpuadm for a token whenever it needs one. It has no secret.
func (n *ownNode) kubeconfig() []byte {
	named := func(kind, name string, value map[string]any) []any {
		return []any{map[string]any{"name": name, kind: value}}
	}
	cluster := map[string]any{
		"server":                n.cluster.Server,
		"certificate-authority": kubelet.ClusterCA,
	}
	exec := map[string]any{
		"apiVersion":      "client.authentication.k8s.io/v1", // kubelets from 1.22 on
		"command":         plugin,
		"args":            []string{"token", "eks", "--cluster", n.cluster.Name, "--region", n.region},
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
	return append([]byte(kubelet.Written), text...)
}
