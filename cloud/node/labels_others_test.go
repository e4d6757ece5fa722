// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/must"
)

// layoutEnv hands a layout to a process of our own that has the fake driver in its library path.
const layoutEnv = "GPUADM_TEST_LAYOUT"

// askGFD writes what NVIDIA's program says on a fake machine into a golden file.
func askGFD(t *testing.T, c labelCase, program, golden string) {
	t.Helper()
	fake := fakenvml.New(t, c.gpus)
	run := func(argv []string, env ...string) string {
		t.Helper()
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(append(os.Environ(), fake.Env()...), env...)
		out, err := cmd.CombinedOutput()
		must.That(t, err == nil, "%v: %v\n%s", argv, err, out)
		return string(out)
	}
	layout, _ := json.Marshal(c.layout)
	for range 2 {
		said := run([]string{os.Args[0], "-test.run=^TestPartitionFake$", "-test.v"}, layoutEnv+"="+string(layout))
		for line := range strings.Lines(said) {
			if _, gpus, ok := strings.Cut(strings.TrimSpace(line), "to be reset: "); ok {
				fake.SMI("--gpu-reset", "-i", gpus)
			}
		}
	}
	dir := t.TempDir()
	config := fmt.Sprintf("version: v1\nflags:\n  migStrategy: %s\n", c.strategy)
	for how, replicas := range map[string]int{"timeSlicing": c.replicas, "mps": c.mps} {
		if replicas > 0 {
			config += fmt.Sprintf("sharing:\n  %s:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: %d\n", how, replicas)
		}
	}
	for name, text := range map[string]string{"config": config, "machine": c.machine + "\n"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	run([]string{
		program, "--oneshot", "--no-timestamp", "--use-node-feature-api=false", "--device-discovery-strategy=nvml",
		"--config-file", filepath.Join(dir, "config"), "--machine-type-file", filepath.Join(dir, "machine"), "--output-file", filepath.Join(dir, "out"),
	})
	out := must.Get(os.ReadFile(filepath.Join(dir, "out")))(t)
	sorted := slices.Sorted(strings.Lines(string(out)))
	must.OK(t, os.MkdirAll(filepath.Dir(golden), 0o755))
	must.OK(t, os.WriteFile(golden, []byte(strings.Join(sorted, "")), 0o644))
}

// TestPartitionFake is what askGFD runs in a process of its own. In any other it has nothing to do.
func TestPartitionFake(t *testing.T) {
	text := os.Getenv(layoutEnv)
	if text == "" {
		return
	}
	var layout map[int][]string
	must.OK(t, json.Unmarshal([]byte(text), &layout))
	h := must.Get(host.Open("/"))(t)
	d := must.Get(h.Driver(t.Context()))(t)
	if slices.ContainsFunc(d.GPUs, func(g host.GPU) bool { return len(g.Instances) > 0 }) {
		return // the run before did it
	}
	if wait := partition(t, h, layout); len(wait) > 0 {
		fmt.Println("to be reset: " + strings.Join(wait, ","))
	}
}

// With [sharing] the number that a device plugin offers is compared with it, also where none is waited for: one that was configured
// otherwise offers another. A node without a device plugin is ready.
func TestSharingCompared(t *testing.T) {
	for _, x := range []struct{ sharing, offers, waits string }{
		{"time_slicing = 4\n", "8", ""},
		{"mps = 4\n", "8", ""},
		{"time_slicing = 4\n", "2", "2 of 8 nvidia.com/gpu"},
		{"mps = 4\n", "2", "2 of 8 nvidia.com/gpu"},
		{"", "8", "8 of 2 nvidia.com/gpu"},
		{"time_slicing = 4\n", "", ""},
		{"time_slicing = 4\n", "0", ""},
	} {
		a := apiFixture(t, apiSpec+"[sharing]\n"+x.sharing)
		name := "nvidia.com/gpu"
		if x.offers == "" {
			name = ""
		}
		offers(a, a.BootID(), name, x.offers)
		a.Advance(time.Minute)
		_, err := a.engine().Apply(a.ctx, a)
		if x.waits == "" && err != nil || x.waits != "" && (!trouble.Passes(err) || !strings.Contains(err.Error(), x.waits)) {
			t.Errorf("%q, of which %q are offered: %v; want %q", x.sharing, x.offers, err, x.waits)
		}
	}
	a := apiFixture(t, apiSpec)
	offers(a, a.BootID(), "nvidia.com/gpu", "8")
	a.Advance(time.Minute)
	_, err := a.engine().Apply(a.ctx, a)
	check.That(t, err == nil, "without [sharing]: %v", err)
}

func FuzzSandboxes(f *testing.F) {
	f.Add([]byte{0x0a, 0x02, 0x12, 0x00})
	f.Fuzz(func(t *testing.T, data []byte) {
		var pods []string
		var err error
		alloc.Most(t, 200, len(data), func() { pods, err = sandboxes(data) })
		for _, p := range pods {
			if err == nil && strings.ContainsAny(p, "\n\r") {
				t.Errorf("%q", p)
			}
		}
	})
}
