// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// A process re-executes itself once: the same pid, arguments and environment.
func TestReexec(t *testing.T) {
	if os.Getenv("REEXEC_CHILD") != "" {
		fmt.Printf("\npid %d %s %s\n", os.Getpid(), os.Getenv("REEXEC_CHILD"), strings.Join(os.Args[1:], " "))
		must.OK(t, commands.Reexec())
		return
	}

	self := must.Get(os.Executable())(t)
	cmd := exec.Command(self, "-test.run=^TestReexec$", "-test.count=1")
	cmd.Env = append(os.Environ(), "REEXEC_CHILD=kept")
	out := must.Get(cmd.CombinedOutput())(t)
	var lines []string
	for _, line := range strings.Split(string(out), "\n") {
		if strings.HasPrefix(line, "pid ") {
			lines = append(lines, line)
		}
	}

	check.That(t, len(lines) == 2 && lines[0] == lines[1] && strings.Contains(lines[0], "kept -test.run="), "it ran so:\n%s", out)
}
