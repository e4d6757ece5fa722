// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"os"
	"slices"
	"syscall"
)

// reexeced is in the environment of a process that Reexec has started.
const reexeced = "GPUADM_REEXECED"

// Reexec replaces this process by a new one with the same program, arguments, more, and environment. It returns only if it
// cannot. A process that Reexec has started does not do it a second time: then it returns nil. It takes the program from
// /proc/self/exe, since an installation may have replaced the file meanwhile. The run lock must be free.
func Reexec(more ...string) error {
	if os.Getenv(reexeced) != "" {
		return nil
	}
	if err := syscall.Exec("/proc/self/exe", with(os.Args, more), append(os.Environ(), reexeced+"=1")); err != nil {
		return fmt.Errorf("cannot re-execute gpuadm: %w", err)
	}
	return nil
}

// with adds flags to arguments, behind the ones they override, and before a "--" that ends flags.
func with(argv, more []string) []string {
	end := slices.Index(argv, "--")
	if end < 0 {
		end = len(argv)
	}
	return slices.Insert(slices.Clone(argv), end, more...)
}
