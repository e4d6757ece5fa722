// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

func TestGFDSeen(t *testing.T) {
	for name, c := range map[string]struct{ tree, want string }{
		"nothing":      {"-- sim.toml --\n-- proc/7/comm --\nkubelet\n", ""},
		"its file":     {"-- sim.toml --\n-- etc/kubernetes/node-feature-discovery/features.d/gfd --\nnvidia.com/gpu.count=8\n", "/etc/kubernetes/node-feature-discovery/features.d/gfd"},
		"its pod":      {"-- sim.toml --\n-- var/log/containers/gpu-feature-discovery-x7_gpu-operator_gpu-feature-discovery-0f.log --\n", "/var/log/containers/gpu-feature-discovery-x7_gpu-operator_gpu-feature-discovery-0f.log"},
		"other's pods": {"-- sim.toml --\n-- var/log/containers/nvidia-device-plugin-x7_kube-system_plugin-0f.log --\n", ""},
		"its process":  {"-- sim.toml --\n-- proc/77/comm --\ngpu-feature-dis\n", "process 77"},
	} {
		t.Run(name, func(t *testing.T) {
			n := must.Get(simhost.New([]byte(c.tree)))(t)
			f, err := Gather(t.Context(), n, Needs{Driver: true})
			if err != nil || f.GFD != c.want {
				t.Errorf("%q, %v, want %q", f.GFD, err, c.want)
			}
			if f, _ := Gather(t.Context(), n, Needs{}); f.GFD != "" || f.Machine != "" {
				t.Error("found out what was not asked for")
			}
		})
	}
}

// configSpace is PCI configuration space with capabilities, each laid where its first number says.
func configSpace(first byte, capabilities map[int]string) []byte {
	config := make([]byte, 256)
	config[6], config[0x34] = 0x10, first
	for at, c := range capabilities {
		copy(config[at:], c)
	}
	return config
}

func TestVGPU(t *testing.T) {
	const driver = "\x00\x16550.90\x00\x00\x00\x00r550_00\x00\x00\x00"
	own := "\x09\x00\x1bVF" + driver
	for name, c := range map[string]struct {
		config []byte
		want   *VGPU
	}{
		"a whole GPU":         {configSpace(0x60, map[int]string{0x60: "\x01\x68\x03", 0x68: "\x05\x00"}), nil},
		"another's":           {configSpace(0x60, map[int]string{0x60: "\x09\x00\x14\x01\x00"}), nil},
		"a virtual one":       {configSpace(0xd0, map[int]string{0xd0: own}), &VGPU{"550.90", "r550_00"}},
		"behind others":       {configSpace(0x60, map[int]string{0x60: "\x01\xd0\x03", 0xd0: own}), &VGPU{"550.90", "r550_00"}},
		"another record":      {configSpace(0x60, map[int]string{0x60: "\x09\x00\x1fVF\x01\x04ab" + driver}), &VGPU{"550.90", "r550_00"}},
		"no record of it":     {configSpace(0x60, map[int]string{0x60: "\x09\x00\x09VF\x01\x04ab"}), &VGPU{}},
		"a record of nothing": {configSpace(0x60, map[int]string{0x60: "\x09\x00\x1fVF\x01\x00ab" + driver}), &VGPU{}},
		"a chain that loops":  {configSpace(0x60, map[int]string{0x60: "\x01\x60\x03"}), nil},
		"at the end":          {configSpace(0xfd, map[int]string{0xfd: "\x09\x00\x1b"}), nil},
		"not root":            {configSpace(0xd0, map[int]string{0xd0: own})[:64], nil},
		"no capabilities":     {make([]byte, 256), nil},
	} {
		if diff := cmp.Diff(c.want, vgpu(c.config)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func FuzzVGPU(f *testing.F) {
	f.Add(configSpace(0xd0, map[int]string{0xd0: "\x09\x00\x1bVF\x00\x16550.90"}))
	f.Add(configSpace(0xff, map[int]string{0xff: "\x09"}))
	f.Fuzz(func(t *testing.T, config []byte) {
		if v := vgpu(config); v != nil && (len(v.Version) > 10 || len(v.Branch) > 10 || !strings.Contains(string(config), "VF")) {
			t.Errorf("%+v", v)
		}
	})
}
