// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/test/check"
)

// A mount that is read-only for all processes is named, and not the limits of this one; where the
// machine can write there, the limits are.
func TestReadOnlyMountIsNamed(t *testing.T) {
	err := host.Failed("write", "/etc/containerd/config.toml", syscall.EROFS)
	for mounted, want := range map[bool]string{
		true:  "/etc/containerd is mounted read-only, for all processes of this machine | mount -o remount,bind,rw /etc/containerd",
		false: "this process lacks capabilities | run it without these limits",
	} {
		e := env{
			root:     true,
			confined: func() []string { return []string{"this process lacks capabilities"} },
			readOnlyMount: func(name string) (commands.Mount, bool) {
				check.Equal(t, name, "/etc/containerd/config.toml", "asked about:")
				return commands.Mount{Point: "/etc/containerd", Bind: true}, mounted
			},
		}
		f := failureOf(err)
		f.advise(e, err)
		said := strings.Join(f.Because, "\n") + " | " + strings.Join(f.Try, "\n")
		check.Has(t, said, want, "mounted read-only %v:", mounted)
		check.That(t, len(f.Because) == 1, "because %q", f.Because)
	}
}

// TestAttributeIsNamed: an attribute of a file keeps root from a change with all capabilities, too,
// so the command that takes it away is printed, and not the limits of the process.
func TestAttributeIsNamed(t *testing.T) {
	err := &host.FileError{
		Verb:      "write",
		Path:      "/etc/containerd/config.toml",
		Cause:     syscall.EPERM,
		Attribute: host.Attribute{Of: "/etc/containerd", Set: "i"},
	}
	e := env{
		root:     true,
		confined: func() []string { return []string{"this process lacks capabilities"} },
	}
	f := failureOf(err)
	f.advise(e, err)
	check.List(t, f.Because, nil, "because")
	check.List(t, f.Try, []string{"see what has set it, then: sudo chattr -i /etc/containerd"}, "try")
}
