// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestWaiting: beside a long command a line says what it does, and its exit code is the command's.
func TestWaiting(t *testing.T) {
	var out, errs bytes.Buffer
	const long = "sleep 3; echo done; exit 7"
	cmd := exec.CommandContext(t.Context(), "sh", "../../images/build/waiting.sh", "compiling", "sh", "-c", long)
	cmd.Stdout = &out
	cmd.Stderr = &errs
	_ = cmd.Run()
	check.That(t, cmd.ProcessState.ExitCode() == 7, "exit code %d", cmd.ProcessState.ExitCode())
	check.Equal(t, out.String(), "done\n", "stdout:")
	check.Equal(t, errs.String(), "compiling … 2s\n", "stderr:")
}

// TestHelpOfMake: make help says of each target how long it takes.
func TestHelpOfMake(t *testing.T) {
	makefile := must.Get(os.ReadFile("../../Makefile"))(t)
	targets := regexp.MustCompile(`(?m)^([a-z0-9-]+):.*?## (.*)$`).FindAllStringSubmatch(string(makefile), -1)
	must.That(t, len(targets) >= 30, "%d targets", len(targets))
	time := regexp.MustCompile(`\b(seconds?|minutes?|hours?|night|Ctrl-C|FUZZTIME)\b`)
	for _, target := range targets {
		says := time.MatchString(target[2])
		check.That(t, says, "make help does not say how long %s takes: %s", target[1], target[2])
	}
}
