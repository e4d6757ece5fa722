// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// NotBuilt says why a build in DKMS's tree failed, with the compiler's first error in its log.
func NotBuilt(v host.View, tree, name, version, kernel string, err error) error {
	cannot := fmt.Sprintf("cannot build the modules %s %s for %s", modulesOf(name), version, kernel)
	t := &trouble.Error{What: fmt.Sprintf("%s: %v", cannot, err), Err: err}
	if errors.Is(err, context.DeadlineExceeded) { // the deadline killed the compiler, not a lack of memory
		t.What = cannot + " within --deadline: the build was ended"
		return t
	}

	tree = path.Join(tree, name, version)
	logs := []string{tree + "/build/make.log"}
	for _, arch := range []string{"x86_64", "amd64", "aarch64", "arm64"} {
		logs = append(logs, path.Join(tree, kernel, arch, "log/make.log"))
	}
	for _, log := range logs {
		data, readErr := v.ReadFile(log)
		if readErr != nil {
			continue
		}
		if first := FirstError(string(data)); first != "" {
			t.What = cannot + ": " + first
			t.Because = []string{"the first error in " + log}
			t.Try = BuildRemedy(v, first)
			t.Err = BuildLesson(v, name, version, kernel, first, t.Err)
		}

		t.Try = append(t.Try, "read "+log)
		break
	}

	var command *host.CommandError
	if errors.As(err, &command) {
		t.Because = append(t.Because, quoted("dkms", command.Stderr)...)
		if strings.Contains(command.Stderr, noSpace) { // then the log is empty
			t.Try = append(BuildRemedy(v, noSpace), t.Try...)
		}
	}

	return t
}

// modulesOf is what DKMS's name of modules stands for: nvidia, whatever the package calls them, or
// GPUDirect Storage's.
func modulesOf(name string) string {
	if strings.HasPrefix(name, "nvidia-fs") {
		return name
	}
	return "nvidia"
}

// buildSubject names a build in a lesson. The flavour is "" where the sources do not say it.
func buildSubject(modules, version, kernel, flavour string) string {
	subject := "the modules " + modules + " " + version + " for kernel " + kernel
	if flavour != "" {
		subject += ", " + flavour
	}
	return subject
}

// BuildLesson adds to an error that this version does not build for a kernel by its
// compiler. A cause that passes, or that an operator can remove, teaches nothing. name is
// DKMS's of the modules.
func BuildLesson(v host.View, name, version, kernel, first string, err error) error {
	passes := strings.Contains(first, "Killed") || strings.Contains(first, "***")
	if passes || len(BuildRemedy(v, first)) > 0 {
		return err
	}
	flavour := sourceFlavour(v, "/usr/src/"+name+"-"+version)
	return converge.Teach(err, converge.Lesson{
		Subject: buildSubject(modulesOf(name), version, kernel, flavour),
		With:    Compiler(v, kernel),
		Says:    first,
	})
}

// Concerns says whether a lesson is about a build of the driver for a kernel: one flavour's failure
// says nothing of the other, nor one compiler's.
func Concerns(v host.View, l converge.Lesson, version, kernel, flavour string) bool {
	if l.With != "" && l.With != Compiler(v, kernel) {
		return false
	}
	return l.Subject == buildSubject("nvidia", version, kernel, flavour) ||
		l.Subject == buildSubject("nvidia", version, kernel, "")
}

// sourceFlavour is open or proprietary, by the licence in the driver's sources; "" if they
// do not say it.
func sourceFlavour(v host.View, source string) string {
	for _, folder := range []string{source + "/nvidia", source} {
		entries, err := v.ReadDir(folder)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			if path.Ext(entry) != ".c" {
				continue
			}
			text, err := v.ReadFile(path.Join(folder, entry))
			if err != nil {
				continue
			}
			if flavour := facts.FlavourIn(string(text)); flavour != "" {
				return flavour
			}
		}
	}
	return ""
}

// Compiler names the compiler of a kernel, by the configuration in the kernel's headers; "" if they
// do not say it.
func Compiler(v host.View, kernel string) string {
	config, err := v.ReadFile("/lib/modules/" + kernel + "/build/.config")
	if err != nil {
		return ""
	}
	return facts.CompilerIn(string(config))
}

// ignoreRealtime is the variable that makes NVIDIA's build accept a kernel with PREEMPT_RT:
// kernel-open/conftest.sh, and https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1240.
const ignoreRealtime = "IGNORE_PREEMPT_RT_PRESENCE"

// RealtimeRemedy says what to do about a kernel with PREEMPT_RT, which NVIDIA's build refuses.
func RealtimeRemedy() []string {
	const command = `MAKE[0]="` + ignoreRealtime + `=1 make -j$(nproc) KERNEL_UNAME=${kernelver} modules"`
	return []string{
		"boot a kernel without PREEMPT_RT",
		"or, at your own risk, have DKMS set " + ignoreRealtime + ": in /etc/dkms/nvidia.conf, " + command,
	}
}

// IgnoresRealtime says whether a file of DKMS's has it build for kernels with PREEMPT_RT.
func IgnoresRealtime(text string) bool { return strings.Contains(text, ignoreRealtime) }

const noSpace = "No space left on device"

// lacksCXX reports whether a line is the shell's or make's about the C++ compiler, which NVIDIA's
// open modules of some packages need and do not depend on.
// Sources: https://github.com/NVIDIA/open-gpu-kernel-modules/issues/805 and
// https://github.com/NVIDIA/yum-packaging-dkms-nvidia/issues/5.
func lacksCXX(line string) bool {
	_, after, found := strings.Cut(line, "g++: ")
	return found && (strings.Contains(after, "not found") || strings.HasPrefix(after, "No such file"))
}

// BuildRemedy says what to do about the first error of a build; nothing where that is not known.
func BuildRemedy(v host.View, first string) []string {
	switch {
	case lacksCXX(first):
		name := "g++"
		if _, err := v.Stat("/usr/bin/rpm"); err == nil && host.NotExist(statOf(v, "/usr/bin/dpkg")) {
			name = "gcc-c++"
		}
		return []string{fmt.Sprintf("write packages = [%q] in [driver]: these modules need the C++ compiler, and their package does not ask for it", name)}
	case strings.Contains(first, "PREEMPT_RT"):
		return RealtimeRemedy()
	case strings.Contains(first, noSpace):
		return []string{"make room in " + dkmsTree + " and /tmp (df -h " + dkmsTree + " /tmp): dkms status shows versions of old drivers there, and dkms remove NAME/VERSION --all takes one away"}
	}
	return nil
}

func statOf(v host.View, name string) error {
	_, err := v.Stat(name)
	return err
}

// FirstError finds the line that says why make failed: the first error. The last one only repeats
// that make failed.
func FirstError(log string) string {
	summary := ""
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		switch {
		case strings.Contains(line, "Killed"):
			return "the compiler was killed, most likely for want of memory: " + line
		case saysError(line):
			return line
		case summary == "" && strings.Contains(line, "***"):
			summary = line
		}
	}

	return summary
}

// saysError reports whether a line of a log is an error of the compiler, the linker or the shell.
func saysError(line string) bool {
	words := []string{
		" error: ", "fatal error:",
		"undefined reference",
		"No space left on device",
		": not found", ": command not found",
	}
	contains := func(word string) bool { return strings.Contains(line, word) }
	return strings.HasPrefix(line, "ERROR: modpost:") || slices.ContainsFunc(words, contains)
}
