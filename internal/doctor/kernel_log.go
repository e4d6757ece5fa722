// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"slices"
	"strings"
)

// Log has the kernel's lines of this boot, the oldest first, each without its time.
func (m *Machine) Log() []string {
	lines, _ := m.log.read(m, "kernel log", func() ([]string, error) {
		out, err := m.View.Ask(m.ctx, "journalctl", "--no-pager", "--quiet", "--dmesg", "--boot", "--output=cat")
		if err != nil || len(out) == 0 { // journalctl(1): who may not read the system's journal gets an empty answer
			if out, err = m.View.Ask(m.ctx, "dmesg"); err != nil {
				return nil, errors.New("neither journalctl nor dmesg shows it: only root, or the group adm, may read it")
			}
		}
		return strings.Split(string(out), "\n"), nil
	})
	return lines
}

// sinceLoad are the kernel's lines since the module nvidia was last loaded: earlier ones are out of
// date. "NVRM: loading NVIDIA UNIX x86_64 Kernel Module 580.95.05": kernel-open/nvidia/nv.c of
// https://github.com/NVIDIA/open-gpu-kernel-modules.
func (m *Machine) sinceLoad() []string {
	lines := m.Log()
	for i, line := range slices.Backward(lines) {
		if strings.Contains(line, "NVRM: loading NVIDIA UNIX") {
			return lines[i:]
		}
	}
	return lines
}

// lastLineWith returns the last of the lines that has one of the texts; "" if none has.
func lastLineWith(lines []string, texts ...string) string {
	for _, line := range slices.Backward(lines) {
		if slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(line, t) }) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
