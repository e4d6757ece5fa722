// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package daemonset holds the manifests by which gpuadm runs on the nodes of a cluster.
package daemonset

import _ "embed"

// RBAC says who gpuadm is there, and that it may change its own Node alone: Kubernetes 1.30 or newer.
//
//go:embed rbac.yaml
var RBAC []byte

// Manifest is the DaemonSet, and the ConfigMap with its spec.
//
//go:embed daemonset.yaml
var Manifest []byte
