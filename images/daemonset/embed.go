// SPDX-License-Identifier: Apache-2.0

// Package daemonset holds the manifests by which gpuadm runs on the nodes of a cluster.
package daemonset

import "embed"

// RBAC says who gpuadm is there, and that it may change its own Node alone: Kubernetes 1.30 or
// newer.
//
//go:embed rbac.yaml
var RBAC []byte

// Manifests are the DaemonSet, the ConfigMap with its spec, and what a cloud needs beside them:
// eks.yaml, aks.yaml, gke.yaml and onprem.yaml.
//
//go:embed eks.yaml aks.yaml gke.yaml onprem.yaml
var Manifests embed.FS
