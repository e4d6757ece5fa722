// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package cloud makes the machine a node of a Kubernetes cluster, on any cloud or none. It puts the labels and
// taints of the node where its kubelet reads them before it registers for the first time (stage node), joins the cluster
// or leaves joining to its owner on that cloud (stage join), and shows the cluster that the GPUs are ready (stage
// ready). Files of others are edited as bytes, by the smallest change that has the wanted effect.
package cloud
