// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// twoH100 is a machine with two GPUs whose driver answers.
func twoH100(t *testing.T, toml string, tables ...string) *simhost.Node {
	t.Helper()
	text := "-- sim.toml --\n" + strings.Join(tables, "")
	bus := ""
	for _, address := range []string{"0000:17:00.0", "0000:2a:00.0"} {
		text += "[[gpu]]\nmodel = \"H100-80\"\n"
		bus += "-- sys/bus/pci/devices/" + address + "/uevent --\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n"
	}
	n := must.Get(simhost.New([]byte(text + bus + "-- etc/gpuadm/node.toml --\nformat = 1\n" + toml)))(t)
	return n
}

func outputOn(h host.Host, root bool, argv ...string) (int, string) {
	var out strings.Builder
	e := env{
		stdin: strings.NewReader(""), stdout: &out, stderr: &out, getenv: func(string) string { return "" }, root: root,
		open: func(string) (host.Host, error) { return h, nil },
		read: func(string) ([]byte, error) { return nil, io.EOF },
	}
	return run(context.Background(), e, argv), out.String()
}

// TestApplyNamesEveryGPU: what plan says of each GPU, apply says too when it changes them.
func TestApplyNamesEveryGPU(t *testing.T) {
	n := twoH100(t, "[[mig.gpu]]\nlayout = { \"1g.10gb\" = 7 }\n")
	_, plan := outputOn(n, true, "plan", "mig")
	code, apply := outputOn(n, true, "apply", "mig")
	for _, line := range []string{"GPU 0: 7 × 1g.10gb", "GPU 1: 7 × 1g.10gb"} {
		if code != 0 || !strings.Contains(plan, line) || !strings.Contains(apply, line) {
			t.Errorf("exit code %d; %q is not in both of\n%s\n%s", code, line, plan, apply)
		}
	}
}

// TestNamesPausedServices: plan and apply name the services that the change stops for a while, each once; those that do not run are not
// among them, and a change that only makes partitions pauses none.
func TestNamesPausedServices(t *testing.T) {
	const units = "[[unit]]\nname = \"nvidia-dcgm.service\"\nactive = \"active\"\n[[unit]]\nname = \"nvidia-persistenced.service\"\nactive = \"active\"\n[[unit]]\nname = \"nvsm.service\"\nactive = \"inactive\"\n"
	n := twoH100(t, "[[mig.gpu]]\nlayout = { \"1g.10gb\" = 2 }\n", units)
	for _, step := range []struct{ layout, services string }{
		{`"1g.10gb" = 2`, "nvidia-dcgm.service, nvidia-persistenced.service"}, // the mode changes
		{`"1g.10gb" = 3`, ""},
		{`"7g.80gb" = 1`, "nvidia-dcgm.service"},
	} {
		must.OK(t, n.WriteFile("/etc/gpuadm/node.toml", []byte("format = 1\n[[mig.gpu]]\nlayout = { "+step.layout+" }\n"), host.Attr{Mode: 0o644}))
		_, plan := outputOn(n, true, "plan", "mig")
		code, apply := outputOn(n, true, "apply", "mig")
		plans, made := strings.Contains(plan, "Pauses and resumes "+step.services+"."), strings.Contains(apply, "; paused and resumed "+step.services+". To undo")
		if step.services == "" {
			plans, made = !strings.Contains(plan, "Pauses"), !strings.Contains(apply, "paused")
		}
		if code != 0 || !plans || !made {
			t.Errorf("%s: exit code %d, want %q in both of\n%s\n%s", step.layout, code, step.services, plan, apply)
		}
	}
}

// refused is a machine whose driver does not let this process change a GPU.
type refused struct{ host.Host }

func (refused) SetMIGMode(context.Context, string, bool) error {
	return &host.GPUError{Call: "nvmlDeviceSetMigMode", GPU: "0000:17:00.0", Code: "NO_PERMISSION"}
}

// TestNoPermissionSaysRoot: an error about missing rights says what to do.
func TestNoPermissionSaysRoot(t *testing.T) {
	code, out := outputOn(refused{twoH100(t, "[[mig.gpu]]\n")}, true, "apply", "mig")
	if code == 0 || !strings.Contains(out, "NO_PERMISSION") || !strings.Contains(out, "run it as root") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// TestGateStaysShut: a GPU that waits alone leaves the node not ready: apply says so by its exit code, and kubelet may not start.
func TestGateStaysShut(t *testing.T) {
	n := twoH100(t, "[mig]\nfailure = \"per-gpu\"\n[[mig.gpu]]\nlayout = { \"1g.10gb\" = 7 }\n")
	n.Use("0000:1f:00.0", -1, 4711)
	code, out := outputOn(n, true, "apply")
	gate, why := outputOn(n, true, "gate")
	if code == 0 || gate == 0 {
		t.Errorf("apply: exit code %d\n%s\ngate: exit code %d\n%s", code, out, gate, why)
	}
}
