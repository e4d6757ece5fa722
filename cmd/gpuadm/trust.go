// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path"

	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/stages"
)

// trustInstalled refuses to continue if another user could have written the boot units, or the
// binary that they run as root. If the install stage will write these files, only their folders
// count.
func trustInstalled(h host.View, e *converge.Engine) error {
	names := stages.Installed(h)
	reinstall := []string{"or install them again with a gpuadm that you trust: apply --install"}
	if agent.Installs(e) {
		reinstall = nil
		names = nil
		for _, name := range append(stages.Units(), stages.Binary) {
			names = append(names, path.Dir(name))
		}
	}

	err := h.Trusted(names...)
	if err == nil {
		return nil
	}
	t := faults.Untrusted(h.Root(), err)
	t.Try = append(t.Try, reinstall...)
	return t
}

// trust refuses files of the machine that users other than root could change.
func trust(h host.View, names ...string) error {
	if err := h.Trusted(names...); err != nil {
		return faults.Untrusted(h.Root(), err)
	}
	return nil
}

// warnOfWriters names the -f files that every user can change. gpuadm uses them: the operator chose
// them.
func (c *common) warnOfWriters() {
	if c.stat == nil || c.quiet {
		return
	}

	for _, name := range c.files {
		if name == "-" {
			continue
		}
		info, err := c.stat(name)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o002 != 0 {
			printf(c.stderr, "gpuadm: warning: every user can write to %s, and so decides what gpuadm does here\n", name)
		}
	}
}
