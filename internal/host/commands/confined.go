// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Confined says what keeps this process from what root may do, each in a line: capabilities it lacks, a seccomp filter, a
// security module's profile, a mount namespace of its own. The kernel answers only "operation not permitted" or "read-only
// file system" for all of them. The list is empty for a process that may do all.
func Confined() []string {
	status, _ := os.ReadFile("/proc/self/status")
	label, _ := os.ReadFile("/proc/self/attr/current")
	own, _ := os.Readlink("/proc/self/ns/mnt")
	initial, _ := os.Readlink("/proc/1/ns/mnt") // "" without CAP_SYS_PTRACE: nothing is known then
	return confined(string(status), string(label), own, initial)
}

func confined(status, label, own, initial string) (all []string) {
	if missing := missingCapabilities(field(status, "CapEff")); len(missing) > 0 {
		all = append(all, "this process lacks the capabilities "+strings.Join(missing, ", ")+" (its unit's CapabilityBoundingSet=, or a container's, says which it has)")
	}
	if field(status, "Seccomp") == "2" {
		all = append(all, "a seccomp filter forbids this process some system calls (SystemCallFilter= and the like in its unit, or a container's profile)")
	}
	if own != "" && initial != "" && own != initial {
		all = append(all, "this process has its own mount namespace, where parts may be read-only (ProtectSystem= or ReadOnlyPaths= in its unit)")
	}
	if l := strings.Trim(label, "\x00\n "); !free(l) {
		all = append(all, fmt.Sprintf("a security module runs this process as %q (ausearch -m avc, or dmesg, says what it forbade)", l))
	}
	return all
}

// free says whether a label is AppArmor's for no profile, or of one of SELinux's types that may do all: unconfined_t of a
// shell, unconfined_service_t of a unit. Without such a module there is no label.
func free(label string) bool {
	if parts := strings.Split(label, ":"); len(parts) >= 3 {
		return strings.HasPrefix(parts[2], "unconfined_")
	}
	return label == "" || label == "unconfined"
}

// missingCapabilities names what a mask in hex lacks of the capabilities that may be needed here: capabilities(7) has
// their numbers. A mask that cannot be read lacks nothing.
func missingCapabilities(mask string) (missing []string) {
	has, err := strconv.ParseUint(mask, 16, 64)
	if err != nil {
		return nil
	}
	for _, c := range []struct {
		name string
		bit  int
	}{
		{"CAP_CHOWN", 0},
		{"CAP_DAC_OVERRIDE", 1},
		{"CAP_DAC_READ_SEARCH", 2},
		{"CAP_FOWNER", 3},
		{"CAP_FSETID", 4},
		{"CAP_LINUX_IMMUTABLE", 9},
		{"CAP_SYS_MODULE", 16},
		{"CAP_SYS_ADMIN", 21},
		{"CAP_SYS_BOOT", 22},
		{"CAP_SETFCAP", 31},
	} {
		if has&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	return missing
}

// field is a line's value in a file like /proc/self/status: proc_pid_status(5).
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
