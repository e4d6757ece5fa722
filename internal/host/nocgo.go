//go:build !cgo

// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import "context"

// withoutCgo is the answer of a gpuadm that was built without cgo: NVML is a C library.
func withoutCgo() error {
	return &NoDriver{Why: "this gpuadm was built without cgo, and the driver's library is a C library", Try: "build it with CGO_ENABLED=1"}
}

type nvmlSession struct{}

func (nvmlSession) End() {}

func (d *nvmlDoor) Driver(context.Context) (Driver, error) { return Driver{}, withoutCgo() }

func (d *nvmlDoor) SetMIGMode(context.Context, string, bool) error { return withoutCgo() }

func (d *nvmlDoor) CreateInstance(context.Context, string, int, Span) (int, error) {
	return 0, withoutCgo()
}

func (d *nvmlDoor) DestroyInstance(context.Context, string, int) error { return withoutCgo() }

func (d *nvmlDoor) CreateCompute(context.Context, string, int, int, Span) (int, error) {
	return 0, withoutCgo()
}

func (d *nvmlDoor) DestroyCompute(context.Context, string, int, int) error { return withoutCgo() }

func (d *nvmlDoor) SetPersistence(context.Context, string, bool) error { return withoutCgo() }

func callCUDA([]string) CUDA {
	return CUDA{NoLibrary: "this gpuadm was built without cgo, and " + cudaName + " is a C library"}
}
