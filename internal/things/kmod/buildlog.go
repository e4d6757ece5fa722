// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// NotBuilt says why a build in DKMS's tree failed, with the compiler's first error in its log.
func NotBuilt(v host.View, tree, name, version, kernel string, err error) error {
	modules := "nvidia"
	if strings.HasPrefix(name, "nvidia-fs") {
		modules = name
	}
	cannot := fmt.Sprintf("cannot build the modules %s %s for %s", modules, version, kernel)
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
		}
		t.Try = append(t.Try, "read "+log)
		break
	}

	var command *host.CommandError
	if errors.As(err, &command) {
		t.Because = append(t.Because, quoted("dkms", command.Stderr)...)
	}

	return t
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
