// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

// PolicyCode is in the denial of a key by the policy of images/daemonset/rbac.yaml, and nowhere else. Its number is that of what the
// policy promises: it grows when the policy takes more from the ServiceAccount.
const PolicyCode = "gpuadm-node-keys-1"
