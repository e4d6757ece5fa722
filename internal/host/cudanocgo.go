//go:build !cgo

// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

func callCUDA([]string) CUDA {
	return CUDA{NoLibrary: "this gpuadm was built without cgo, and " + cudaName + " is a C library"}
}
