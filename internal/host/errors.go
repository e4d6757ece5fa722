// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// FileError reports what could not be done to a file and why; errors.Is finds fs.ErrNotExist, syscall.ENOSPC and the like.
type FileError struct {
	Verb  string // read, write, remove, …
	Path  string // as it was asked for
	Leads string // where it leads, if links are on the way
	Cause error
	note  string // the cause in better words than the kernel's
}

func (e *FileError) Error() string {
	s := "cannot " + e.Verb + " " + e.Path
	if e.Leads != "" && e.Leads != e.Path {
		s += " (which leads to " + e.Leads + ")"
	}
	if e.note != "" {
		return s + ": " + e.note
	}
	return fmt.Sprintf("%s: %v", s, e.Cause)
}

func (e *FileError) Unwrap() error { return e.Cause }

// fail words an error of a path that could not even be walked.
func fail(verb, name string, err error) error {
	return &FileError{Verb: verb, Path: name, Cause: err}
}

// fail words an error at a place. The kernel says "operation not permitted" for several things a person must know apart.
func (at place) fail(verb, name string, err error) error {
	if at.of != nil && !errors.Is(err, fs.ErrNotExist) { // most of what is not there is no error
		if leads, err := at.of.Resolve(name); err == nil {
			at.path = leads
		}
	}
	e := &FileError{Verb: verb, Path: name, Leads: at.path, Cause: err}
	switch {
	case errors.Is(err, syscall.EBUSY):
		e.note = "it is a mount point of its own"
	case errors.Is(err, syscall.EPERM) && verb != "read":
		e.note = at.chattr()
	}
	return e
}

// chattr names the attribute that keeps even root from changing a file or its folder: chattr(1).
func (at place) chattr() string {
	it, _ := at.dir.Lstat(at.name)
	folder, _ := at.dir.Lstat(".")
	for _, at := range []struct{ what, flag string }{{"it", it.Chattr}, {"its folder", folder.Chattr}} {
		switch at.flag {
		case "i":
			return at.what + " is immutable (chattr +i)"
		case "a":
			return at.what + " is append-only (chattr +a)"
		}
	}
	return ""
}

// Join is errors.Join, but that its text is one line.
func Join(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return joined{err}
	}
	return nil
}

type joined struct{ error }

func (j joined) Error() string { return strings.ReplaceAll(j.error.Error(), "\n", "; ") }

func (j joined) Unwrap() error { return j.error }

// notRegular says why a file is not read or replaced.
type notRegular fs.FileMode

func (m notRegular) Error() string {
	return "it is " + TypeName(fs.FileMode(m)) + ", not a regular file"
}

// Is makes a folder answer to syscall.EISDIR and all else to fs.ErrInvalid.
func (m notRegular) Is(target error) bool {
	return target == fs.ErrInvalid || target == syscall.EISDIR && fs.FileMode(m).IsDir()
}

// TypeName says in words what kind of file a mode is of: "a folder".
func TypeName(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeSymlink != 0:
		return "a link"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m.IsRegular():
		return "a regular file"
	}
	return "something"
}

// NotExist says that a file, a folder or a unit does not exist.
func NotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

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
