// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"fmt"

	"github.com/hashicorp/go-version"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// oldestKubelet is how many minor versions a kubelet may be older than its API server; it may never be newer.
// Source: https://kubernetes.io/releases/version-skew-policy/#kubelet. Before 1.25 two were allowed.
const oldestKubelet = 3

// versionsFit refuses a kubelet that the API server's version does not go with: it may register, and fail later in ways that
// do not point to the cause. What has no version that can be read is let through.
func versionsFit(kubelet, server string) error {
	k, kerr := version.NewVersion(kubelet)
	s, serr := version.NewVersion(server)
	if kerr != nil || serr != nil || k.Segments()[0] != s.Segments()[0] {
		return nil
	}
	major, minor, serves := s.Segments()[0], k.Segments()[1], s.Segments()[1]
	oldest := oldestKubelet
	if minor < 25 {
		oldest = 2
	}
	problem := ""
	switch {
	case minor > serves:
		problem = "newer than the API server, which is " + server
	case minor < serves-oldest:
		problem = fmt.Sprintf("more than %d minor versions older than the API server, which is %s", oldest, server)
	default:
		return nil
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot join: kubelet %s is %s", kubelet, problem),
		Because: []string{"Kubernetes supports no such pair: https://kubernetes.io/releases/version-skew-policy/#kubelet"},
		Try: []string{
			fmt.Sprintf("install kubelet %d.%d, from that minor version's package repository: https://kubernetes.io/docs/tasks/administer-cluster/kubeadm/change-package-repository/", major, serves),
			"or upgrade the cluster's control plane first",
		},
	}
}
