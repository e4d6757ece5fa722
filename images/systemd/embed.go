// SPDX-License-Identifier: Apache-2.0

// Package systemd holds the units that bring a node back after a boot.
package systemd

import _ "embed"

var (
	//go:embed gpuadm.service
	Service []byte
	//go:embed gpuadm-ready.service
	Ready []byte
	//go:embed gpuadm-spec.service
	Spec []byte
	//go:embed gpuadm-spec.path
	SpecPath []byte
	//go:embed gpuadm-drift.service
	Drift []byte
	//go:embed gpuadm-drift.timer
	DriftTimer []byte
	//go:embed kubelet-gpuadm.conf
	Gate []byte // the drop-in that makes kubelet wait
)
