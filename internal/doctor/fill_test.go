// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestOneCommandForAllGPUs: what is typed for eight GPUs is one command with their addresses.
func TestOneCommandForAllGPUs(t *testing.T) {
	w := incident.Joined(t, true)
	w.Steps(`gpus lost = "it does not answer"`)
	r := examine(t, w.Node())
	must.That(t, codes(r) == "GPU-003", "root causes %v", r.Causes)
	var resets []string
	for _, command := range r.Causes[0].Commands {
		if strings.Contains(command, "--gpu-reset") {
			resets = append(resets, command)
		}
	}

	want := "sudo nvidia-smi --gpu-reset -i " + strings.Join(w.GPUs(), ",")
	check.That(t, len(resets) == 1 && resets[0] == want, "%q, want %q", resets, want)
}

// TestGPUWithTwoErrorsIsNamedOnce: a GPU with errors of its memory and of another part, which one
// reset ends, is in the command once.
func TestGPUWithTwoErrorsIsNamedOnce(t *testing.T) {
	w := incident.Joined(t, true)
	w.GPU(0, `recovery = "reset"`)
	const at = "NVRM: Xid (PCI:0000:18:00): "
	w.Says(at+"48, words", at+"62, words")
	r := examine(t, w.Node())
	must.That(t, codes(r) == "GPU-011" && len(r.Causes[0].Found) == 2, "root causes %v", r.Causes)
	check.Has(t, r.Causes[0].Fix, "(sudo nvidia-smi --gpu-reset -i 0000:18:00.0)", "its fix")
}

// TestOfAllGPUs: commands about one GPU are joined where nothing else differs.
func TestOfAllGPUs(t *testing.T) {
	got := ofAllGPUs([]string{
		"sudo nvidia-smi -i 0000:18:00.0 --ecc-config=1",
		"sudo nvidia-smi --gpu-reset -i 0000:18:00.0",
		"sudo nvidia-smi -i 0000:2a:00.0 --ecc-config=1",
		"sudo reboot",
	})
	want := []string{
		"sudo nvidia-smi -i 0000:18:00.0,0000:2a:00.0 --ecc-config=1",
		"sudo nvidia-smi --gpu-reset -i 0000:18:00.0",
		"sudo reboot",
	}
	check.Equal(t, strings.Join(got, "\n"), strings.Join(want, "\n"), "the commands")
}

// TestNoPlaceholderWithoutAnAnswer: a report whose checks did not all end names the Node by what the
// shell knows.
func TestNoPlaceholderWithoutAnAnswer(t *testing.T) { synctest.Test(t, noPlaceholder) }

func noPlaceholder(t *testing.T) {
	w := incident.Joined(t, true)
	w.Steps(`gpu 1 linksdown = [3]`)
	stuck, over := stuckView{w.Node(), make(chan struct{}, 100), make(chan struct{})}, make(chan time.Time)
	m := &Machine{ctx: t.Context(), View: stuck}
	go func() {
		<-stuck.asked
		<-stuck.asked
		synctest.Wait() // until all other checks have ended
		close(over)
	}()
	report := m.examineUntil(over)
	close(stuck.gone)

	must.That(t, codes(report) == "GPU-015", "root causes %v, not checked: %v", report.Causes, report.Unread)
	fix := report.Causes[0].Fix
	check.That(t, strings.Contains(fix, "kubectl drain --selector=kubernetes.io/hostname=$(hostname) "), "%s", fix)
}
