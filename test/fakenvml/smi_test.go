// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package fakenvml

import (
	"regexp"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// Output of the real nvidia-smi, as operators have shown it. The UUIDs are their GPUs' own.
const (
	// github.com/DataDog/datadog-agent/pull/33120, driver 535.216.01; a GPU that is cut as evenly:
	// github.com/influxdata/telegraf/issues/5812, where more GPUs follow.
	recordedSevenths = `GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-7fdaf0a5-179b-f636-d15d-daf243e3ff16)
  MIG 1g.10gb     Device  0: (UUID: MIG-feb88891-0321-5fef-9c87-d4af3b54259e)
  MIG 1g.10gb     Device  1: (UUID: MIG-a25704ba-3a06-5299-a795-fd7cf4d13973)
  MIG 1g.10gb     Device  2: (UUID: MIG-50f1c4c9-1508-5e8d-bb06-d08145b22e01)
  MIG 1g.10gb     Device  3: (UUID: MIG-36c795f2-5cf7-55d6-af30-e535e79b7bb6)
  MIG 1g.10gb     Device  4: (UUID: MIG-3f45d38c-8cee-503e-b806-a1f1bdceedeb)
  MIG 1g.10gb     Device  5: (UUID: MIG-96655de9-9525-58f9-a62b-0e4c1cc1c265)
  MIG 1g.10gb     Device  6: (UUID: MIG-1aae4990-b962-574e-8375-119d6d9b9687)
`
	// github.com/NVIDIA/mig-parted/issues/181; the last paragraph also in
	// github.com/NVIDIA/gpu-operator/issues/118, of one GPU.
	recordedBusy = `
The following GPUs could not be reset:
  GPU 00000000:01:00.0: In use by another client
  GPU 00000000:47:00.0: In use by another client
  GPU 00000000:81:00.0: In use by another client
  GPU 00000000:C2:00.0: In use by another client

4 devices are currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics application such as an X server, or a monitoring application such as another instance of nvidia-smi). Please first kill all processes using these devices and all compute applications running in the system.
`
	recordedBusyExit = 255
	// MicrosoftDocs/azure-docs, databox-online, azure-stack-edge-gpu-deploy-kubernetes-gpu-sharing.md
	// (Start-HcsGpuMPS); of three GPUs, by number: github.com/boostorg/compute/issues/9.
	recordedExclusive = `Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:00:06.0.
All done.
`
)

var ownOfAMachine = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0`)

// TestSMIRecorded: the fake nvidia-smi says what the real one has said.
func TestSMIRecorded(t *testing.T) {
	anonymous := func(text string) string {
		return ownOfAMachine.ReplaceAllString(text, "ITS-OWN")
	}

	f, lib := load(t, "A100-80:4")
	enabled(t, f, lib, 0)
	fill(lib, 0)
	said, code := f.SMI("-L", "-i", "0")
	check.That(t, code == 0, "-L: exit %d", code)
	check.Equal(t, anonymous(said), anonymous(recordedSevenths), "-L:")

	said, code = f.SMI("-i", "0", "-c", "EXCLUSIVE_PROCESS")
	check.That(t, code == 0, "-c: exit %d", code)
	check.Equal(t, anonymous(said), anonymous(recordedExclusive), "-c:")

	for gpu := range 4 {
		f.PassThrough(gpu)
		f.Hold(gpu, -1, 99+gpu)
	}

	said, code = f.SMI("--gpu-reset")
	check.That(t, code == recordedBusyExit, "--gpu-reset: exit %d", code)
	check.Equal(t, strings.TrimSpace(anonymous(said)), strings.TrimSpace(anonymous(recordedBusy)), "--gpu-reset:")
}
