// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

// bootLimit is how long a machine may take from its first instruction to its last. There is no KVM
// on most machines that are machines themselves, so it is emulated.
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
		out, err := cmd.CombinedOutput()
		must.That(t, err == nil, "cannot install the emulator: %s: %v: %s", line, err, out)
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

// patience is how long a machine may say nothing on its serial lines while a test waits for
// something. How long a boot takes says nothing: emulated it takes minutes, and as many more as
// other programs have the processors.
const patience = 20 * time.Minute

// pc is a machine with a disk of its own, off or on.
type pc struct {
	t    *testing.T
	of   baked
	dir  string
	cmd  *exec.Cmd
	ends chan error // says how the emulator ended
	said bytes.Buffer
}

// newPC makes a machine with a copy of the image's disk.
func newPC(t *testing.T, of baked) *pc {
	t.Helper()
	p := &pc{t: t, of: of, dir: t.TempDir()}
	out, err := exec.CommandContext(t.Context(), "cp", "--sparse=always", of.disk, p.file("disk")).CombinedOutput()
	must.That(t, err == nil, "cannot copy the disk: %v: %s", err, out)
	return p
}

func (p *pc) file(name string) string { return filepath.Join(p.dir, name) }

// accelerator is KVM where this machine's processor has virtualization; else it emulates. The
// device alone says little: where it is offered without those instructions, Debian's kernel does
// not come to its first line.
// Source: vmx and svm in arch/x86/include/asm/cpufeatures.h of the kernel's tree;
// https://wiki.debian.org/KVM.
func accelerator() string {
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err == nil {
		_ = kvm.Close()
	}
	if err == nil && virtualizes.Match(cpu) {
		return "kvm"
	}
	return "tcg,thread=multi"
}

var virtualizes = regexp.MustCompile(`(?m)^flags\s*:.*\b(vmx|svm)\b`)

// on switches it on. When the guest reboots, it boots again.
func (p *pc) on(parameters string) {
	p.t.Helper()
	modules := ""
	for _, name := range []string{"nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem"} {
		modules += " " + name + ".gpus=1"
	}
	for _, name := range []string{"console", "answers"} {
		_ = os.Remove(p.file(name))
	}
	p.said.Reset()
	// Of -cpu max udev loads the modules of each cipher that it has, and of KVM, which test
	// themselves for minutes where that is emulated.
	p.cmd = exec.CommandContext(p.t.Context(), emulator, "-accel", accelerator(), "-machine", "q35", "-cpu", "qemu64,-svm,+rdrand", "-smp", "2", "-m", "2048",
		"-nodefaults", "-display", "none", "-kernel", p.of.kernelFile, "-initrd", p.of.initrd,
		// What the guest has synced is in this machine's memory, and outlives an emulator that is
		// killed: no sync of its own is waited for.
		"-drive", "format=raw,if=virtio,cache=unsafe,file="+p.file("disk"), "-device", "virtio-rng-pci",
		"-append", "root=/dev/vda rw console=ttyS0 panic=-1 mitigations=off random.trust_cpu=on cryptomgr.notests systemd.journald.forward_to_console=1 systemd.default_timeout_start_sec=600 "+parameters+modules,
		"-serial", "file:"+p.file("console"), "-serial", "file:"+p.file("answers"))
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	err := p.cmd.Start()
	must.That(p.t, err == nil, "cannot start the emulator: %v", err)
	ends, cmd := make(chan error, 1), p.cmd
	p.ends = ends
	go func() { ends <- cmd.Wait() }()
	p.t.Cleanup(p.cut)
}

// cut cuts its power: what the kernel had not written yet is lost.
func (p *pc) cut() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		<-p.ends
		p.cmd = nil
	}
}

// read is what it has written so far on one of its serial lines.
func (p *pc) read(name string) string {
	text, _ := os.ReadFile(p.file(name))
	return strings.ReplaceAll(string(text), "\r", "")
}

// until waits for something of a machine that runs.
func (p *pc) until(what string, is func() bool) {
	p.t.Helper()
	began := time.Now()
	said, when := 0, began
	for !is() {
		if now := len(p.read("console")) + len(p.read("answers")); now != said {
			said, when = now, time.Now()
		}
		select {
		case err := <-p.ends:
			p.cmd = nil
			p.t.Fatalf("no %s: the emulator has ended: %v: %s\n%s", what, err, p.said.String(), p.last())
		case <-time.After(200 * time.Millisecond):
		}

		if time.Since(when) > patience {
			p.t.Fatalf("no %s, and no word within %s\n%s", what, patience, p.last())
		}
	}

	p.t.Logf("%s after %s", what, time.Since(began).Round(100*time.Millisecond))
}

// last is what the console said last.
func (p *pc) last() string {
	lines := strings.SplitAfter(p.read("console"), "\n")
	return "its console said last:\n" + strings.Join(lines[max(0, len(lines)-60):], "") + "\nits answers:\n" + p.read("answers")
}

// says waits until the console says something.
func (p *pc) says(what string) {
	p.t.Helper()
	p.until(what, func() bool { return strings.Contains(p.read("console"), what) })
}

// answers waits for those of the next boot that comes to its end, and cuts the power.
func (p *pc) answers() machine {
	p.t.Helper()
	const end = "end of answers\n"
	p.until("answers", func() bool { return strings.Contains(p.read("answers"), end) })
	text := p.read("answers")
	p.cut()
	return machine{p.t, parse(text[strings.LastIndex(text[:len(text)-len(end)], end)+1:])}
}
