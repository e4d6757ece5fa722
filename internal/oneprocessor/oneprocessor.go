// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package oneprocessor has the program that imports it use one processor. Gpuadm waits for others most of the time, and threads that work
// side by side spend time to wake each other: with one, an apply with nothing to do takes as long, and 6 % less of the processor.
//
// It is a package of its own since those that import nothing are initialised first. Later, every other run has memory ready on the second
// processor too, which the Go runtime then takes back, for 110 pages more (releaseAll in src/runtime/mcache.go of Go 1.26).
package oneprocessor

import "runtime"

var _ = runtime.GOMAXPROCS(1)
