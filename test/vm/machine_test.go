// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// bootLimit is how long a machine may take from its first instruction to its last. There is no KVM on most
// machines that are machines themselves, so it is emulated.
const bootLimit = 5 * time.Minute

// emulator runs machines; its package is Debian's qemu-system-x86.
const emulator = "qemu-system-x86_64"

// haveEmulator installs the emulator where it is missing, and says so.
func haveEmulator(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath(emulator); err == nil {
		return
	}
	const install = "apt-get -q -y --no-install-recommends install qemu-system-x86"
	t.Logf("%s is missing: %s", emulator, install)
	for _, line := range []string{"apt-get -q update", install} {
		argv := strings.Fields(line)
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("cannot install the emulator: %s: %v: %s", line, err, out)
		}
	}
}

// answer is what a command in the machine said, and its exit code.
type answer struct {
	text string
	code int
}

// boot runs a machine until it powers itself off, and returns its answers by their names.
func boot(t *testing.T, m image, parameters string) map[string]answer {
	t.Helper()
	dir := t.TempDir()
	console, answers := filepath.Join(dir, "console"), filepath.Join(dir, "answers")
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	// panic=-1 with -no-reboot: a panic ends the emulator at once.
	cmd := exec.CommandContext(ctx, emulator, "-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max", "-smp", "2", "-m", "1024",
		"-nodefaults", "-display", "none", "-no-reboot", "-kernel", m.kernelFile, "-initrd", m.initrd,
		"-append", "rdinit=/init console=ttyS0 panic=-1 "+parameters, "-serial", "file:"+console, "-serial", "file:"+answers)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	output, _ := os.ReadFile(console)
	text, _ := os.ReadFile(answers)
	clean := strings.ReplaceAll(string(text), "\r", "")
	if err != nil || strings.Contains(string(output), "Kernel panic") || !strings.HasSuffix(clean, "end of answers\n") {
		lines := strings.SplitAfter(string(output), "\n")
		t.Fatalf("the machine did not come to its end: %v: %s\nits answers:\n%s\nits console said last:\n%s",
			err, out, clean, strings.Join(lines[max(0, len(lines)-30):], ""))
	}
	t.Logf("booted, asked and powered off in %s", time.Since(began).Round(100*time.Millisecond))
	return parse(clean)
}

var answerEnd = regexp.MustCompile(`^>>> (\S+) (\d+)$`)

func parse(text string) map[string]answer {
	found := map[string]answer{}
	var open string
	var output strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if end := answerEnd.FindStringSubmatch(line); end != nil && end[1] == open {
			code, _ := strconv.Atoi(end[2])
			found[open] = answer{output.String(), code}
			open = ""
		} else if name, ok := strings.CutPrefix(line, "<<< "); ok && open == "" {
			open = name
			output.Reset()
		} else if open != "" {
			output.WriteString(line + "\n")
		}
	}
	return found
}
