// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// longJournal is journalctl on a machine whose kernel has said more than gpuadm reads at a time.
// Like journalctl it prints all lines, the last so many, or those that match a pattern.
func longJournal(lines []string, most int) simhost.Program {
	ask := func(_ *files.Files, argv []string) ([]byte, error) {
		shown := lines
		for _, word := range argv {
			if pattern, is := strings.CutPrefix(word, "--grep="); is {
				shown = nil
				for _, line := range lines {
					if regexp.MustCompile(pattern).MatchString(line) {
						shown = append(shown, line)
					}
				}
			}

			if strings.HasPrefix(word, "--lines=") {
				shown = lines[max(0, len(lines)-most):]
			}
		}

		if len(shown) > most {
			out := strings.Join(shown[:most], "\n")
			tooMuch := errors.New("it says too much")
			return []byte(out), &host.CommandError{
				Argv:  argv,
				Code:  -1,
				Cause: tooMuch,
			}
		}

		return []byte(strings.Join(shown, "\n") + "\n"), nil
	}
	return simhost.Program{Looks: func([]string) bool { return true }, Run: ask}
}

// The first Xid of a machine that reports another line for hours is found, with how often it came,
// and the report says that older lines were not read.
func TestLongKernelLog(t *testing.T) {
	const loaded = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
	const xid = "NVRM: Xid (PCI:0000:18:00): 119, pid=1, name=python, Timeout after 6s"
	const flood = "NVRM: nvAssertFailedNoLog: Assertion failed"
	lines := []string{"NVRM: Xid (PCI:0000:2a:00): 79, pid=1, of the driver before", loaded, xid, xid}
	for range 5000 {
		lines = append(lines, flood)
	}
	lines = append(lines, xid, flood)

	r := incident.Working(t)
	r.GPU(0, `recovery = "reset"`)
	n := r.Node()
	n.Install("journalctl", longJournal(lines, 1000))
	report := examine(t, n)
	check.That(t, codes(report) == "GPU-011", "root causes %v", report.Causes)
	if len(report.Causes) > 0 {
		what := report.Causes[0].Found[0].What
		check.That(t, strings.Contains(what, "Xid 119, GSP RPC timeout, 3 times"), "%s", what)
	}
	isNamed := len(report.Unread) > 0 && report.Unread[0].What == "kernel log"
	check.That(t, isNamed, "not checked: %v", report.Unread)
}

// prints is a program that prints a text.
func prints(text string) simhost.Program {
	return simhost.Program{
		Looks: func([]string) bool { return true },
		Run:   func(*files.Files, []string) ([]byte, error) { return []byte(text), nil },
	}
}

// A log without a line was not shown: the kernel always says something.
func TestEmptyKernelLog(t *testing.T) {
	for name, x := range map[string]struct {
		journal, ring string
		isShown       bool
	}{
		"neither": {"", "", false},
		"journal": {"Linux version 6.8.0-88-generic\n", "", true},
		"ring":    {"", "[    0.000000] Linux version 6.8.0-88-generic\n", true},
	} {
		n := incident.Working(t).Node()
		n.Install("journalctl", prints(x.journal))
		n.Install("dmesg", prints(x.ring))
		report := examine(t, n)
		isNamed := slices.ContainsFunc(report.Unread, func(u Unread) bool { return u.What == "kernel log" })
		check.Equal(t, !isNamed, x.isShown, "%s: shown, by %v:", name, report.Unread)
	}
}

// The pattern for the journal finds each line that is read as an error.
func TestInJournal(t *testing.T) {
	for _, line := range []string{
		"NVRM: Xid (PCI:0000:18:00): 119, pid=1, name=python, Timeout after 6s",
		"NVRM: Xid (0000:18:00): 62, words",
		"NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
		"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 32 LTSSM Fault Up",
	} {
		check.That(t, regexp.MustCompile(faults.InJournal).MatchString(line), "%s", line)
		_, _, isXid := faults.ReadXid(line)
		_, _, isSXid := faults.ReadSXid(line)
		check.That(t, (isXid || isSXid) && faults.IsInJournal(line), "%s", line)
	}
}
