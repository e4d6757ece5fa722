// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

// environmentTopic is `gpuadm help environment`.
func environmentTopic() *cobra.Command {
	return &cobra.Command{Use: "environment", Short: "which environment variables gpuadm reads (gpuadm help environment)", Long: environment}
}

const environment = `Every flag can be given by a variable: its name in capitals after GPUADM_, with _
for -. A flag on the command line wins. For example:

  GPUADM_FILE=node.toml     --file node.toml
  GPUADM_ROOT=/mnt/image    --root /mnt/image
  GPUADM_OUTPUT=json        --output json
  GPUADM_NO_COLOR=true      --no-color
  GPUADM_DEADLINE=10m       --deadline 10m, for the verbs that have it

Set by gpuadm itself, for a new process of the same run: GPUADM_REEXECED.

Of other programs: NO_COLOR and TERM=dumb turn colours off; JOURNAL_STREAM, from
systemd, has gpuadm log to the journal; KUBERNETES_EXEC_INFO, from kubelet, says
which version of a credential it wants; KUBERNETES_SERVICE_HOST and
KUBERNETES_SERVICE_PORT name the API server in a pod. GOGC is Go's own. gpuadm
ignores SSL_CERT_FILE and SSL_CERT_DIR: they do not decide which certificates it trusts.`
