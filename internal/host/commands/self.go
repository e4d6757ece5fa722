// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
)

// withSelf lets a program inherit this gpuadm's own file, open: other users may be able to write
// where its name is, or the name may be another program's by now. A shell that the program starts
// finds the file by $PPID: the program keeps it open while it waits for the shell.
func (r Runner) withSelf(cmd *exec.Cmd) (done func(), err error) {
	if r.Self != "" || !hasPlaceholder(cmd, host.Self) {
		replace(cmd, host.Self, r.Self)
		return func() {}, nil
	}

	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("cannot open this program's own file: %w", err)
	}

	cmd.ExtraFiles = append(cmd.ExtraFiles, self)
	replace(cmd, host.Self, fmt.Sprintf("/proc/$PPID/fd/%d", 2+len(cmd.ExtraFiles)))
	return func() { self.Close() }, nil
}

// hasPlaceholder reports whether an argument has a placeholder.
func hasPlaceholder(cmd *exec.Cmd, placeholder string) bool {
	for _, a := range cmd.Args {
		if strings.Contains(a, placeholder) {
			return true
		}
	}
	return false
}

// replace replaces a placeholder in the arguments.
func replace(cmd *exec.Cmd, placeholder, by string) {
	cmd.Args = slices.Clone(cmd.Args) // they are the caller's
	for i, a := range cmd.Args {
		cmd.Args[i] = strings.ReplaceAll(a, placeholder, by)
	}
}

// reexeced is in the environment of a process that Reexec has started.
const reexeced = "GPUADM_REEXECED"

// Reexec replaces this process by a new one with the same program, the same environment and the
// same arguments, and more of these. It returns only if it cannot. In a process that Reexec has
// started it does nothing and returns nil. It takes the program from /proc/self/exe, since an
// installation may have replaced the file meanwhile. The run lock must be free.
func Reexec(more ...string) error {
	if os.Getenv(reexeced) != "" {
		return nil
	}
	env := append(os.Environ(), reexeced+"=1")
	err := syscall.Exec("/proc/self/exe", addFlags(os.Args, more), env)
	return fmt.Errorf("cannot re-execute gpuadm: %w", err)
}

// addFlags adds flags to arguments, after those that they override, and before a "--" that ends the
// flags.
func addFlags(argv, more []string) []string {
	end := slices.Index(argv, "--")
	if end < 0 {
		end = len(argv)
	}
	return slices.Insert(slices.Clone(argv), end, more...)
}
