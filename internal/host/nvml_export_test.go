// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

// What the tests look into.
var (
	Printable = printable
	WithWords = withWords
)

// Because is what the door says of a code that NVML's initialisation returns.
func Because(files *Files, code string) *NoDriver { return newNVML(files).because(code) }
