// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestStaleZero: kubelet keeps the zero of a device plugin that is gone. Beside it the devices of the DRA driver count, once
// all are published. The zero of a plugin that is registered is an offer of nothing.
func TestStaleZero(t *testing.T) {
	const socket = "/var/lib/kubelet/device-plugins/nvidia-gpu.sock"
	answers := func(string, []byte) ([]byte, error) { return nil, nil }
	refuses := func(string, []byte) ([]byte, error) { return nil, errors.New("connection refused") }
	for name, c := range map[string]struct {
		offered string // nvidia.com/gpu on the Node
		devices int    // of the DRA driver
		plugin  func(string, []byte) ([]byte, error)
		waits   string
	}{
		"all slices, stale zero":         {"0", 2, nil, ""},
		"all slices, dead socket":        {"0", 2, refuses, ""},
		"all slices, registered plugin":  {"0", 2, answers, "0 of 2 nvidia.com/gpu"},
		"some slices, stale zero":        {"0", 1, nil, "1 of 2 devices of gpu.nvidia.com"},
		"no slices, stale zero":          {"0", 0, nil, "0 of 2 nvidia.com/gpu"},
		"all slices, one GPU unhealthy":  {"1", 2, answers, "1 of 2 nvidia.com/gpu"},
		"no slices, plugin offers all":   {"2", 0, answers, ""},
		"all slices, no plugin was ever": {"", 2, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := apiFixture(t, apiSpec+"wait_for_allocatable = true\n")
			resource := "nvidia.com/gpu"
			if c.offered == "" {
				resource = ""
			}
			offers(a, a.BootID(), resource, c.offered)
			if c.plugin != nil {
				for _, dir := range []string{"/var", "/var/lib", "/var/lib/kubelet", path.Dir(socket)} {
					if err := a.Mkdir(dir, host.Attr{Mode: 0o755}); err != nil && !errors.Is(err, fs.ErrExist) {
						t.Fatal(err)
					}
				}
				must.OK(t, a.WriteFile(socket, nil, host.Attr{Mode: 0o755}))
				a.Daemon(socket, c.plugin)
			}
			if c.devices > 0 {
				var devices []any
				for i := range c.devices {
					devices = append(devices, kubesim.Object{"name": []string{"gpu-0", "gpu-1"}[i]})
				}
				a.sim.AddSlice("v1", kubesim.Object{"spec": kubesim.Object{
					"nodeName": "gpu-1", "driver": draDriver, "devices": devices,
					"pool": kubesim.Object{"name": "gpu-1", "generation": 1, "resourceSliceCount": 1},
				}})
			}
			a.Advance(time.Minute)
			_, err := a.engine().Apply(a.ctx, a)
			switch {
			case c.waits == "" && err != nil:
				t.Errorf("%v", err)
			case c.waits != "" && (!trouble.Passes(err) || !strings.Contains(err.Error(), c.waits)):
				t.Errorf("want to wait for %q, got %v", c.waits, err)
			}
			if ready := strings.Contains(a.shown(), "True"); ready != (c.waits == "") {
				t.Errorf("ready is %t:\n%s", ready, a.shown())
			}
		})
	}
}
