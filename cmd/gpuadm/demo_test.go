// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

//go:build demo

package main

import "testing"

// TestDemo is what `make demo` prints.
func TestDemo(t *testing.T) {
	golden(t, "demo", "demo")
}
