// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
)

// Log has the kernel's lines of this boot, the oldest first, each without its time.
func (m *Machine) Log() []string {
	lines, _ := m.log.read(m, kernelLog, func() ([]string, error) {
		out, err := m.journal()
		switch {
		case err == nil && len(out) > 0:
			return linesOf(out), nil
		case len(out) > 0: // more than gpuadm reads at a time, or a journal that is slow
			return m.partOfLog()
		}

		// journalctl(1): who may not read the system's journal gets an empty answer. The ring of
		// dmesg is empty in some containers, and after dmesg --clear: the kernel has said something.
		out, dmesgErr := m.View.Ask(m.ctx, "dmesg")
		if dmesgErr == nil && len(out) > 0 {
			return linesOf(out), nil
		}

		var late host.OverLimit
		switch {
		case errors.As(err, &late):
			return nil, err
		case dmesgErr == nil:
			return nil, errors.New("journalctl and dmesg show no line of it")
		}
		return nil, errors.New("neither journalctl nor dmesg shows it: only root, or the group adm, may read it")
	})
	return lines
}

const kernelLog = "kernel log"

// journal asks for the kernel's lines of this boot. filter is more of journalctl's options.
func (m *Machine) journal(filter ...string) ([]byte, error) {
	argv := []string{"journalctl", "--no-pager", "--quiet", "--dmesg", "--boot", "--output=cat"}
	return m.View.Ask(m.ctx, append(argv, filter...)...)
}

func linesOf(text []byte) []string {
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// partOfLog has the newest lines of a log that is too long to be read, after the older Xids: the
// journal finds those itself. A machine that reports the same line for hours is a sick one, and its
// first Xid is the cause. The ring of dmesg then has the newest lines alone.
func (m *Machine) partOfLog() ([]string, error) {
	type answer struct {
		out []byte
		err error
	}
	xids := make(chan answer, 1)
	go func() {
		out, err := m.journal("--grep=" + faults.InJournal)
		xids <- answer{out, err}
	}()
	newest, err := m.journal(fmt.Sprintf("--lines=%d", newestLines))
	of := <-xids
	if len(newest) == 0 {
		return nil, err
	}

	left := fmt.Errorf("it is too long to be read: the lines before its last %d were searched for Xids alone", newestLines)
	if of.err != nil && !foundNothing(of.err) {
		left = fmt.Errorf("it is too long to be read: the lines before its last %d were not read", newestLines)
	}
	m.cannotRead(kernelLog, left)
	lines := linesOf(newest)
	return append(beforeThe(lines, linesOf(of.out)), lines...), nil
}

// foundNothing reports whether journalctl has found no line: it then fails without a word. With
// words it fails where it was built without patterns.
func foundNothing(err error) bool {
	var failed *host.CommandError
	return errors.As(err, &failed) && failed.Code == 1 && failed.Stderr == ""
}

// newestLines is how many lines of a log that is too long are read whole.
const newestLines = 50_000

// beforeThe returns those of the lines found in the whole log that are not among its newest lines.
func beforeThe(newest, found []string) []string {
	among := 0
	for _, line := range newest {
		if faults.IsInJournal(line) {
			among++
		}
	}

	return found[:max(0, len(found)-among)]
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
