// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import "context"

// Driver is View's: a folder's kernel does not run, so no driver answers for its GPUs.
func (f *folder) Driver(context.Context) (Driver, error) { return Driver{}, firstBoot() }

// SetMIGMode is Host's.
func (f *folder) SetMIGMode(context.Context, string, bool) error { return firstBoot() }

// ResetGPUs is Host's.
func (f *folder) ResetGPUs(context.Context, ...string) error { return firstBoot() }

// CreateInstance is Host's.
func (f *folder) CreateInstance(context.Context, string, int, Span) (int, error) {
	return 0, firstBoot()
}

// DestroyInstance is Host's.
func (f *folder) DestroyInstance(context.Context, string, int) error { return firstBoot() }

// CreateCompute is Host's.
func (f *folder) CreateCompute(context.Context, string, int, int, Span) (int, error) {
	return 0, firstBoot()
}

// DestroyCompute is Host's.
func (f *folder) DestroyCompute(context.Context, string, int, int) error { return firstBoot() }

// SetPersistence is Host's.
func (f *folder) SetPersistence(context.Context, string, bool) error { return firstBoot() }

// Terminate is Host's.
func (f *folder) Terminate(int) error { return firstBoot() }

// CUDA is View's.
func (f *folder) CUDA(context.Context, string, ...[]string) ([]CUDA, error) { return nil, firstBoot() }
