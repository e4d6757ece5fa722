// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// After a change of partitions their nodes below /dev/nvidia-caps are there, with the numbers that the driver says, and /dev/char leads
// to them: the driver's tool makes those that are missing. It stays away from nodes that the driver's options leave to another. Stage
// mig makes them by itself, and stage toolkit where another program makes the partitions.
// nvidia-modprobe and the files of /proc are as https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html
// records them.
func TestNodesOfPartitionsAreMade(t *testing.T) {
	for stage, spec := range map[string]string{"toolkit": "[runtime]\n", "mig": "[[mig.gpu]]\nlayout = { \"3g.20gb\" = 2 }\n"} {
		t.Run(stage, func(t *testing.T) { nodesOfPartitions(t, stage, spec) })
	}
}

func nodesOfPartitions(t *testing.T, stage, spec string) {
	const gi = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
	archive := "-- sim.toml --\n" + a100s + "\n-- etc/os-release --\nID=debian\nVERSION_ID=\"13\"\n" +
		"-- proc/devices --\nCharacter devices:\n195 nvidia\n235 nvidia-caps\n\nBlock devices:\n-- dev/nvidiactl device=195:255 --\n-- dev/char/ --\n" +
		"-- usr/bin/nvidia-modprobe mode=0755 --\n" +
		"-- dev/nvidia-caps/made21 device=235:21 --\n-- dev/nvidia-caps/made22 device=235:22 --\n-- dev/nvidia-caps/made30 device=235:30 --\n" +
		"-- proc/driver/nvidia/capabilities/gpu0/mig/gi1/access --\nDeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n" +
		"-- proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access --\nDeviceFileMinor: 22\nDeviceFileMode: 292\nDeviceFileModify: 1\n" +
		"-- proc/driver/nvidia/capabilities/gpu1/mig/gi2/access --\nDeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 0\n"
	n := machine{"caps", []byte(archive)}.boot(t)
	var asked []string
	n.Install("nvidia-modprobe", simhost.Program{Looks: func([]string) bool { return false }, Run: func(f *host.Files, argv []string) ([]byte, error) {
		asked = append(asked, argv[2])
		minor := map[string]int{gi + "/access": 21, gi + "/ci0/access": 22}[argv[2]]
		return nil, f.Rename(fmt.Sprintf("/dev/nvidia-caps/made%d", minor), fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
	}})
	e := engine(t, spec)
	e.Stages = slices.DeleteFunc(e.Stages, func(st converge.Stage) bool { return st.Name != stage })
	apply(t, n, e)
	if want := []string{gi + "/access", gi + "/ci0/access"}; !slices.Equal(asked, want) {
		t.Errorf("nvidia-modprobe was asked for %v", asked)
	}
	for _, minor := range []string{"21", "22"} {
		if to, err := n.Resolve("/dev/char/235:" + minor); err != nil || to != "/dev/nvidia-caps/nvidia-cap"+minor {
			t.Errorf("/dev/char/235:%s leads to %s, %v", minor, to, err)
		}
	}
	if p := plan(t, n, e); slices.ContainsFunc(p.Changes, func(c converge.Change) bool { return strings.HasPrefix(c.Kind, "device") }) {
		t.Errorf("still planned: %+v", p.Changes)
	}
}
