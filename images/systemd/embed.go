// SPDX-License-Identifier: Apache-2.0

// Package systemd holds the units that bring a node back after a boot.
package systemd

import _ "embed"

// Service is gpuadm.service.
//
//go:embed gpuadm.service
var Service []byte

// Ready is gpuadm-ready.service.
//
//go:embed gpuadm-ready.service
var Ready []byte

// Spec is gpuadm-spec.service.
//
//go:embed gpuadm-spec.service
var Spec []byte

// SpecPath is gpuadm-spec.path.
//
//go:embed gpuadm-spec.path
var SpecPath []byte

// Drift is gpuadm-drift.service.
//
//go:embed gpuadm-drift.service
var Drift []byte

// DriftTimer is gpuadm-drift.timer.
//
//go:embed gpuadm-drift.timer
var DriftTimer []byte

// Gate is the drop-in that makes kubelet wait for it.
//
//go:embed kubelet-gpuadm.conf
var Gate []byte
