// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"os"
	"slices"
	"syscall"
)

// startedAnew is in the environment of a process that StartAnew has started.
const startedAnew = "GPUADM_STARTED_ANEW"

// StartAnew replaces this process by a new one with the same program, arguments, those that are more, and environment, and returns only if it
// cannot. A process that was started so does not do it again: then it returns nil. It takes the program from
// /proc/self/exe, since an installation may have replaced the file meanwhile. The run lock must be free.
func StartAnew(more ...string) error {
	if os.Getenv(startedAnew) != "" {
		return nil
	}
	if err := syscall.Exec("/proc/self/exe", with(os.Args, more), append(os.Environ(), startedAnew+"=1")); err != nil {
		return fmt.Errorf("cannot start gpuadm anew: %w", err)
	}
	return nil
}

// with adds flags to arguments, behind those that they shall win against, and before a "--" that ends flags.
func with(argv, more []string) []string {
	end := slices.Index(argv, "--")
	if end < 0 {
		end = len(argv)
	}
	return slices.Insert(slices.Clone(argv), end, more...)
}
