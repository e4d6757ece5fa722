// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/nvml"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// fabricManager is the daemon without which CUDA does not start where GPUs are joined by
// NVSwitches.
const fabricManager = "nvidia-fabricmanager.service"

// cudaCheck starts CUDA, which may fail where NVML answers: without the NVLink fabric (gpu-operator
// issue 2781), or without the device of unified memory (issue 2685).
func cudaCheck(f facts.Facts) gpuCheck {
	const try = "gpuadm " + nvml.CUDAVerb + ", which prints CUDA's answer; dmesg | grep -e NVRM -e Xid says what the driver found"
	look := func(ctx context.Context, v host.View) (string, error) {
		problem, err := startCUDA(ctx, v, f)
		if problem != "" {
			problem += things.OrTry(try)
		}
		return problem, err
	}

	return gpuCheck{what: "CUDA", look: look}
}

// startCUDA says what keeps CUDA from starting, or from seeing the driver's devices.
func startCUDA(ctx context.Context, v host.View, f facts.Facts) (string, error) {
	if _, err := fabricProblem(*f.Driver); err != nil {
		return "", err // CUDA waits for the fabric, too
	}
	validFor, err := cudaValidFor(ctx, v, f)
	if err != nil {
		return "", err
	}
	answers, err := v.CUDA(ctx, validFor, f.Driver.Shown()...)
	if err != nil {
		return "", err
	}

	for _, answer := range answers {
		switch {
		case answer.Works():
		case answer.Code == host.CUDASystemNotReady && answer.NoUVM == "":
			return cudaNotReady(ctx, v)
		default:
			return cudaProblem(answer, f), nil
		}
	}

	return "", nil
}

// cudaValidFor identifies the state for which an answer is valid, from the driver and systemd.
// Before Hopper NVML does not report the fabric, and only the daemon's process id shows whether the
// fabric manager was restarted.
func cudaValidFor(ctx context.Context, v host.View, f facts.Facts) (string, error) {
	type gpu struct {
		Address, UUID, Lost string
		Mode                bool
		Fabric              host.Fabric
	}
	state := struct {
		Driver, NVML string
		GPUs         []gpu
		Fabric       []string
	}{Driver: f.Driver.Version, NVML: f.Driver.NVML}

	for _, g := range f.Driver.GPUs {
		state.GPUs = append(state.GPUs, gpu{
			Address: g.Address,
			UUID:    g.UUID,
			Lost:    g.Lost,
			Mode:    g.Mode,
			Fabric:  g.Fabric,
		})
	}

	if slices.ContainsFunc(f.GPUs, isNVSwitch) {
		unit, _ := v.Unit(ctx, fabricManager) // without systemd the process is unknown each time
		state.Fabric = []string{unit.Active, fmt.Sprint(unit.PID), unit.Since.String()}
	}

	text, err := json.Marshal(state)
	return string(text), err
}

func isNVSwitch(p facts.PCI) bool { return strings.HasPrefix(p.Class, "0680") }

// cudaNotReady explains error 802: the NVLink fabric is not ready. While its daemon runs, gpuadm
// waits for it. Sources: cuda.h (CUDA_ERROR_SYSTEM_NOT_READY: "all required driver daemons");
// NVIDIA's fabric manager user guide; gpu-operator issues 375 and 545.
func cudaNotReady(ctx context.Context, v host.View) (string, error) {
	const problem = "CUDA cannot start: cuInit answers 802 (CUDA_ERROR_SYSTEM_NOT_READY): "
	const see = "systemctl status nvidia-fabricmanager; its version must be the driver's. nvidia-smi -q shows each GPU's state under Fabric"

	unit, err := v.Unit(ctx, fabricManager)
	if err == nil && (unit.Active == "active" || unit.Active == "activating") {
		return "", trouble.Wait{
			For: problem + "the fabric manager runs, and has not made the NVLink fabric ready",
			Try: []string{"if it takes longer than some minutes: " + see},
			Err: fabricForming,
		}
	}

	return problem + "the fabric manager does not run, or the NVLink fabric is not ready" +
		things.OrTry("systemctl enable --now nvidia-fabricmanager") +
		things.OrTry(see), nil
}

// cudaProblem says what keeps CUDA from starting, and which command helps.
func cudaProblem(c host.CUDA, f facts.Facts) string {
	answer := fmt.Sprintf("cuInit answers %d", c.Code)
	if c.Name != "" {
		answer += " (" + c.Name + ")"
	}
	switch {
	case c.NoLibrary != "":
		return "CUDA cannot start: its library libcuda.so.1 cannot be loaded, which pods get from this machine: " + c.NoLibrary +
			things.OrTry("install the package that has libcuda.so.1 of driver "+f.Driver.Version)
	case c.Ended != "":
		return "CUDA cannot start: the process that started it did not succeed: " + c.Ended +
			things.OrTry("systemctl enable --now nvidia-persistenced, without which each start initialises all GPUs")
	case c.NoUVM != "":
		problem := "CUDA cannot start: /dev/nvidia-uvm cannot be opened: " + c.NoUVM
		if c.Code != 0 {
			problem += "; " + answer
		}
		return problem + things.OrTry(faults.Of("DRV-012").Command)
	case c.Code != 0:
		const try = "modprobe -r nvidia-uvm && modprobe nvidia-uvm, where no process uses the GPUs"
		return "CUDA cannot start: " + answer + things.OrTry(try)
	case len(c.Shown) == 1 && strings.HasPrefix(c.Shown[0], "MIG-"):
		return fmt.Sprintf("CUDA does not see the MIG device %s, which the driver has", c.Shown[0])
	}

	const text = "CUDA counts %s, the driver has %d that are not in MIG mode"
	return fmt.Sprintf(text, trouble.Count(c.Devices, "GPU"), len(c.Shown))
}
