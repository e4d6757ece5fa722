// SPDX-License-Identifier: Apache-2.0

// Package kube is a module of its own, so that Kubernetes itself is not part of what gpuadm depends
// on. Its go.mod names, as tools, the programs of a control plane, kubelet and kubectl;
// test/lab/kube builds and runs them, and helm of the module images/build/chart:
//
//	go run ./test/lab/kube/cmd/kube build
//
// A new version: all k8s.io modules of the replace block move together, and go get -tool
// k8s.io/kubernetes/cmd/kubelet@VERSION names the version for each program, or the newest is taken.
package kube
