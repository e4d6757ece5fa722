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

// mokkaCase is a change to a profile of the mock, and what doctor says then.
type mokkaCase struct{ name, from, to, want, note string }

func mokkaCases() []mokkaCase {
	const third, of, all = "  - index: 2\n", "    failure:\n      mode: ", "  remapped_rows:\n"
	const slowed = "    clocks_throttle_reasons:\n      hw_slowdown: true\n      hw_thermal_slowdown: true\n"
	const nearly = "    thermal:\n      temperature_gpu_c: 88\n      slowdown_threshold_c: 90\n"
	const waits = "    ecc:\n      mode_current: \"enabled\"\n      mode_pending: \"disabled\"\n"
	return []mokkaCase{
		{"healthy", third, "", "", ""},
		{"lost", third, of + "lost\n", "GPU-003", ""},
		{"fallen off the bus", third, of + "fallen_off_bus\n", "GPU-003", ""},
		{"ECC", third, of + "ecc_uncorrectable\n", "GPU-007", ""}, // the mock has the remapping fail
		{"rows wait", all, "    pending: true\n", "GPU-006", ""},
		{"rows cannot be remapped", all, "    failure_occurred: true\n", "GPU-007", ""},
		{"heat", third, slowed, "GPU-008", ""},
		{"nearly too hot", third, nearly, "", "has 88 °C, and slows itself down at 90"},
		{"ECC changes with a reset", third, waits, "GPU-016", ""},
	}
}

// TestMokka examines what NVIDIA's own mock of NVML says: pkg/gpu/mocknvml of a checkout of
// https://github.com/NVIDIA/k8s-test-infra, built, in MOKKA. Of its profiles the healthy ones are
// silent, and each failure that it can inject is found. make mokka runs it.
func TestMokka(t *testing.T) {
	checkout, gpuadm := os.Getenv("MOKKA"), os.Getenv("GPUADM")
	if checkout == "" || gpuadm == "" {
		t.Skip("MOKKA and GPUADM name no checkout and no program")
	}
	at := filepath.Join(checkout, "pkg/gpu/mocknvml")
	profiles := must.Get(filepath.Glob(filepath.Join(at, "configs/mock-nvml-config-*.yaml")))(t)
	must.That(t, len(profiles) >= 7, "the checkout has the profiles %v", profiles)
	for _, profile := range profiles {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(profile), "mock-nvml-config-"), ".yaml")
		for _, c := range mokkaCases() {
			t.Run(name+" "+c.name, func(t *testing.T) {
				config := string(must.Get(os.ReadFile(profile))(t))
				if !strings.Contains(config, c.from) {
					t.Skipf("the profile has no %q", c.from)
				}
				mokka(t, c, config, gpuadm, at)
			})
		}
	}
}

// mokka examines the mock with a profile that the case changes.
func mokka(t *testing.T, c mokkaCase, config, gpuadm, at string) {
	t.Helper()
	key, _, _ := strings.Cut(strings.TrimSpace(c.to), ":")
	config = strings.Replace(config, "    "+key+": false\n", "", 1) // of remapped_rows
	file := filepath.Join(t.TempDir(), "config.yaml")
	must.OK(t, os.WriteFile(file, []byte(strings.Replace(config, c.from, c.from+c.to, 1)), 0o600))

	answer := must.Get(os.Create(filepath.Join(t.TempDir(), "answer")))(t)
	cmd := exec.Command(gpuadm, "ask-driver")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+at, "MOCK_NVML_CONFIG="+file)
	cmd.ExtraFiles = []*os.File{answer}
	said := must.Get(cmd.CombinedOutput())(t)
	lines := strings.Split(strings.TrimSpace(string(must.Get(os.ReadFile(answer.Name()))(t))), "\n")
	var last struct{ End struct{ Driver host.Driver } } // the lines before say how far it has come
	must.OK(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	says := last.End
	must.That(t, len(says.Driver.GPUs) > 3, "%d GPUs: %s", len(says.Driver.GPUs), said)

	w := incident.Joined(t, false)
	// The mock has no PCI bus beside it: that of the recorded machine is taken.
	for i := range says.Driver.GPUs {
		says.Driver.GPUs[i].Address = w.GPUs()[i]
	}
	for _, address := range w.GPUs()[len(says.Driver.GPUs):] {
		w.Bind(address, "vfio-pci")
	}
	n := w.Node()
	n.CUDAAnswers(func(shown []string) host.CUDA { // the simulated one knows other GPUs
		return host.CUDA{
			Library: "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
			Devices: len(shown),
		}
	})
	r := examine(t, mokkaView{n, says.Driver})
	check.That(t, codes(r) == c.want, "root causes %q, want %q: %v", codes(r), c.want, r.Causes)
	check.That(t, len(r.Unread) == 0, "not checked: %v", r.Unread)
	noted := ""
	for _, note := range r.Notes {
		noted += note.What + "\n"
	}
	check.That(t, strings.Contains(noted, c.note), "notes %q, want %q", noted, c.note)
	check.That(t, c.note != "" || noted == "", "notes: %s", noted)
}
