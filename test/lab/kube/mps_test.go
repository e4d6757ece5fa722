// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestMPSRecorded: the stand-in for nvidia-cuda-mps-control answers as the real one of the record did,
// knows no other command, and without a daemon ends as the real one does.
func TestMPSRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "nvidia-cuda-mps-control")
	must.OK(t, os.WriteFile(program, []byte(must.Get(MPSProgram())(t)), 0o755))
	run := func(said string, args ...string) (answer string, exit int) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir, "CUDA_MPS_LOG_DIRECTORY=" + dir}
		cmd.Stdin = strings.NewReader(said)
		output, _ := cmd.Output()
		return strings.TrimSpace(string(output)), cmd.ProcessState.ExitCode()
	}

	const ask = "get_default_active_thread_percentage"
	answer, exit := run(ask)
	check.That(t, exit == 1 && answer == "Cannot find MPS control daemon process", "without a daemon: %q, exit %d", answer, exit)

	_, exit = run("", "-d")
	must.That(t, exit == 0, "-d: exit %d", exit)
	t.Cleanup(func() { _, _ = run("quit") })
	recorded := mpsAnswers(mpsRecord)
	must.That(t, len(recorded) == 5, "%d commands in the record", len(recorded))
	for _, r := range recorded {
		answer, exit = run(r.command)
		check.That(t, exit == 0 && answer == r.answer, "%s: %q, exit %d; the record has %q", r.command, answer, exit, r.answer)
	}

	_, exit = run("start_server -uid 0")
	check.That(t, exit == 2, "a command that the record does not have: exit %d", exit)

	_, exit = run("quit")
	check.Equal(t, exit, 0, "quit: exit")
	_, exit = run(ask)
	check.Equal(t, exit, 1, "after quit: exit")
}
