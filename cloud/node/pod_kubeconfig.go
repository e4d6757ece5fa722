// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
)

// PodKubeconfig is where the DaemonSet's pod lends its ServiceAccount to the machine. It is used where [node] kubeconfig names
// no other.
const PodKubeconfig = "/run/gpuadm/kubeconfig"

// TokenKubeconfig is a kubeconfig of a server, the file with its CA, and the file with a token, which is read again as it is
// renewed.
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
