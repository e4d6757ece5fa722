// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package cloud makes the machine a node of a Kubernetes cluster (stage join), on any cloud or none, and waits until the cluster has
// it (stage joined). Each way to join is a folder; what all of them share lies in method, kubelet and node.
package cloud
