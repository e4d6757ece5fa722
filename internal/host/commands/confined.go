// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"
)

// Confined lists what keeps this process from what root may do: capabilities it lacks, a seccomp
// filter, a security module's profile, a mount namespace of its own. The kernel answers only
// "operation not permitted" or "read-only file system" for all of them. The list is empty for a
// process that may do all.
func Confined() []string {
	status, _ := os.ReadFile("/proc/self/status")
	label, _ := os.ReadFile("/proc/self/attr/current")
	last, _ := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	own, _ := os.Readlink("/proc/self/ns/mnt")
	initial, _ := os.Readlink("/proc/1/ns/mnt") // "" without CAP_SYS_PTRACE: nothing is known then
	return confined(string(status), string(label), string(last), own, initial)
}

func confined(status, label, last, own, initial string) (all []string) {
	has, errHas := strconv.ParseUint(field(status, "CapEff"), 16, 64)
	lastCap, errLast := strconv.Atoi(strings.TrimSpace(last))
	known := errHas == nil && errLast == nil
	if known && bits.OnesCount64(has) <= lastCap {
		all = append(all, fmt.Sprintf("this process lacks capabilities: capsh --decode=%x names those that its unit's CapabilityBoundingSet=, or its container, leaves it", has))
	}
	if field(status, "Seccomp") == "2" {
		all = append(all, "a seccomp filter forbids this process some system calls (SystemCallFilter= and the like in its unit, or a container's profile)")
	}
	if own != "" && initial != "" && own != initial {
		all = append(all, "this process has its own mount namespace, where parts may be read-only (ProtectSystem= or ReadOnlyPaths= in its unit)")
	}
	label = strings.Trim(label, "\x00\n ")
	if !unconfined(label) {
		all = append(all, fmt.Sprintf("a security module runs this process as %q (ausearch -m avc, or dmesg, says what it forbade)", label))
	}
	return all
}

// unconfined reports whether a security module's label is that of a process without restrictions:
// AppArmor's word for no profile, or the types that SELinux gives to a shell and to a unit. Without
// such a module a process has no label.
func unconfined(label string) bool {
	switch label {
	case "", "unconfined":
		return true
	}
	return strings.Contains(label, ":unconfined_t:") || strings.Contains(label, ":unconfined_service_t:")
}

// field returns the value of a line in a file like /proc/self/status: proc_pid_status(5).
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
