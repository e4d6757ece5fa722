//go:build !cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/host"
)

// withoutCgo is the answer of a gpuadm that was built without cgo: NVML is a C library.
func withoutCgo() error {
	return &host.NoDriver{
		Why: "this gpuadm was built without cgo, and the driver's library is a C library",
		Try: "build it with CGO_ENABLED=1",
	}
}

type nvmlSession struct{}

func (nvmlSession) End() {}

func (d *NVML) Driver(context.Context) (host.Driver, error) {
	return host.Driver{}, withoutCgo()
}

func (d *NVML) SetMIGMode(context.Context, string, bool) error { return withoutCgo() }

func (d *NVML) CreateInstance(context.Context, string, int, host.Span) (int, error) {
	return 0, withoutCgo()
}

func (d *NVML) DestroyInstance(context.Context, string, int) error { return withoutCgo() }

func (d *NVML) CreateCompute(context.Context, string, int, int, host.Span) (int, error) {
	return 0, withoutCgo()
}

func (d *NVML) DestroyCompute(context.Context, string, int, int) error {
	return withoutCgo()
}

func (d *NVML) SetPersistence(context.Context, string, bool) error { return withoutCgo() }

func callCUDA([]string) host.CUDA {
	return host.CUDA{
		NoLibrary: "this gpuadm was built without cgo, and " + cudaName + " is a C library",
	}
}
