// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/incident"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// mokkaView is a simulated machine whose driver is NVIDIA's own mock of NVML.
type mokkaView struct {
	*simhost.Node
	driver host.Driver
}

func (m mokkaView) Driver(context.Context) (host.Driver, error) { return m.driver, nil }

// TestMokka examines what NVIDIA's own mock of NVML says: pkg/gpu/mocknvml of a checkout of
// https://github.com/NVIDIA/k8s-test-infra, built, in MOKKA. Of its profiles the healthy ones are
// silent, and each failure that it can inject is found. make mokka runs it.
func TestMokka(t *testing.T) {
	checkout, gpuadm := os.Getenv("MOKKA"), os.Getenv("GPUADM")
	if checkout == "" || gpuadm == "" {
		t.Skip("MOKKA and GPUADM name no checkout and no program")
	}
	at := filepath.Join(checkout, "pkg/gpu/mocknvml")
	const third, of, all = "  - index: 2\n", "    failure:\n      mode: ", "  remapped_rows:\n"
	for _, profile := range []string{"a100", "h100", "b200", "gb200", "l40s", "t4"} {
		for _, c := range []struct{ name, from, to, want string }{
			{"healthy", third, "", ""},
			{"lost", third, of + "lost\n", "GPU-003"},
			{"fallen off the bus", third, of + "fallen_off_bus\n", "GPU-003"},
			{"ECC", third, of + "ecc_uncorrectable\n", "GPU-007"}, // the mock has the remapping fail
			{"rows wait", all, "    pending: true\n", "GPU-006"},
			{"rows cannot be remapped", all, "    failure_occurred: true\n", "GPU-007"},
			{"heat", third, "    clocks_throttle_reasons:\n      hw_slowdown: true\n      hw_thermal_slowdown: true\n", "GPU-008"},
		} {
			t.Run(profile+" "+c.name, func(t *testing.T) {
				config := string(must.Get(os.ReadFile(filepath.Join(at, "configs/mock-nvml-config-"+profile+".yaml")))(t))
				if !strings.Contains(config, c.from) {
					t.Skipf("the profile has no %q", c.from)
				}
				key, _, _ := strings.Cut(strings.TrimSpace(c.to), ":")
				config = strings.Replace(config, "    "+key+": false\n", "", 1) // of remapped_rows
				file := filepath.Join(t.TempDir(), "config.yaml")
				must.OK(t, os.WriteFile(file, []byte(strings.Replace(config, c.from, c.from+c.to, 1)), 0o600))
				answer := must.Get(os.Create(filepath.Join(t.TempDir(), "answer")))(t)
				cmd := exec.Command(gpuadm, "ask-driver")
				cmd.Env, cmd.ExtraFiles = append(os.Environ(), "LD_LIBRARY_PATH="+at, "MOCK_NVML_CONFIG="+file), []*os.File{answer}
				said := must.Get(cmd.CombinedOutput())(t)
				var says struct{ Driver host.Driver }
				must.OK(t, json.Unmarshal(must.Get(os.ReadFile(answer.Name()))(t), &says))
				must.That(t, len(says.Driver.GPUs) > 3, "%d GPUs: %s", len(says.Driver.GPUs), said)
				w := incident.Joined(t, false)
				for i := range says.Driver.GPUs { // the mock has no PCI bus beside it: that of the recorded machine is taken
					says.Driver.GPUs[i].Address = w.GPUs()[i]
				}
				for _, address := range w.GPUs()[len(says.Driver.GPUs):] {
					w.Bind(address, "vfio-pci")
				}
				r := examine(t, mokkaView{w.Node(), says.Driver})
				check.That(t, codes(r) == c.want, "root causes %q, want %q: %v", codes(r), c.want, r.Causes)
			})
		}
	}
}
