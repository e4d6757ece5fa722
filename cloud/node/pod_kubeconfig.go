// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
)

// PodKubeconfig is the kubeconfig with a token of its ServiceAccount that the DaemonSet's pod
// writes for the host process. gpuadm uses it if [node] kubeconfig names no other.
const PodKubeconfig = "/run/gpuadm/kubeconfig"

// PodUnsure is there while the cluster has not said whether the DaemonSet's account may be used. A
// startup taint that kubelet registers with then stays in kubelet's flags.
const PodUnsure = "/run/gpuadm/account-unsure"

// TokenKubeconfig returns a kubeconfig with a server, the file of its CA, and the file of a token,
// which clients read again when it is renewed.
func TokenKubeconfig(name, port, ca, token string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: pod
clusters:
- name: cluster
  cluster:
    server: https://%s
    certificate-authority: %s
users:
- name: account
  user:
    tokenFile: %s
contexts:
- name: pod
  context:
    cluster: cluster
    user: account
`, net.JoinHostPort(name, port), ca, token)
}
