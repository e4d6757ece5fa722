// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// lookFunc looks for a problem. "" and no error mean that there is none.
type lookFunc func(context.Context, host.View) (problem string, err error)

// gpuCheck is a check of the GPUs that does not depend on the cluster.
type gpuCheck struct {
	what string
	look lookFunc
	try  []string
}

// gpuChecks returns all checks; only one if no driver answers.
func gpuChecks(s spec.Spec, f facts.Facts) []gpuCheck {
	if f.Driver == nil {
		return []gpuCheck{{
			what: "the driver",
			look: func(ctx context.Context, v host.View) (string, error) { return noDriver(ctx, v, f) },
			try:  []string{trouble.Command("doctor") + ", which finds the cause and names the fix"},
		}}
	}
	return []gpuCheck{
		{
			what: "the driver",
			look: func(context.Context, host.View) (string, error) { return wrongDriver(s, *f.Driver), nil },
			try:  []string{trouble.Command("plan modules") + ", which says how to get there"},
		},
		{
			what: "all GPUs",
			look: func(context.Context, host.View) (string, error) { return wrongGPUCount(s, f), nil },
			try:  []string{"lspci -d 10de: lists them; dmesg tells why one fell off the bus"},
		},
		{
			what: "NVLink fabric",
			look: func(context.Context, host.View) (string, error) { return fabricProblem(*f.Driver) },
			try:  []string{"systemctl status nvidia-fabricmanager; its version must be the driver's"},
		},
		{
			what: "licences",
			look: func(context.Context, host.View) (string, error) { return "", waitForLicence(s, f) },
		},
		cudaCheck(f),
	}
}

// noDriver says why no driver answers.
func noDriver(ctx context.Context, v host.View, f facts.Facts) (string, error) {
	if f.DriverAgain {
		return "", host.NewProcess
	}
	loader, err := facts.LoadsDriver(ctx, v)
	switch {
	case err != nil:
		return "", err
	case loader != "":
		return "", things.DriverLoads(loader)
	}
	return "no NVIDIA driver answers: " + cmp.Or(f.NoDriver, "it was not asked"), nil
}

// wrongDriver says what is wrong with the loaded driver.
func wrongDriver(s spec.Spec, d host.Driver) string {
	pin := s.Driver.Version
	switch {
	case pin != "" && d.Version != pin && !strings.HasPrefix(d.Version, pin+"."):
		return fmt.Sprintf("driver %s is loaded, node.toml wants %s", d.Version, pin)
	case d.NVML != "" && d.NVML != d.Version:
		return fmt.Sprintf("driver %s is loaded, and its library is %s", d.Version, d.NVML)
	}

	return ""
}

// wrongGPUCount compares the driver's GPUs with the bus, and those on the bus with the spec. A GPU
// that is passed through to a virtual machine is on the bus, and is not the driver's.
func wrongGPUCount(s spec.Spec, f facts.Facts) string {
	for _, g := range f.Driver.GPUs {
		if g.Lost != "" {
			return fmt.Sprintf("GPU %s does not answer: %s", g.Address, g.Lost)
		}
	}

	onBus := 0
	passedThrough := 0
	for _, p := range f.GPUs {
		switch {
		case !p.Display():
		case p.Driver == "vfio-pci":
			passedThrough++
		default:
			onBus++
		}
	}

	inDriver := len(f.Driver.GPUs)
	expected := s.Driver.GPUCount
	switch {
	case inDriver != onBus:
		return fmt.Sprintf("the PCI bus has %s, the driver has %d", trouble.Count(onBus, "GPU"), inDriver)
	case expected > 0 && inDriver+passedThrough != expected:
		counted := "the driver has " + trouble.Count(inDriver, "GPU")
		if passedThrough > 0 {
			counted += fmt.Sprintf(" and virtual machines have %d", passedThrough)
		}
		return fmt.Sprintf("%s, node.toml expects %d", counted, expected)
	}

	return ""
}

// waitForLicence names a GPU of a vGPU guest without a licence: CUDA fails on it, at once or after
// the grace period.
func waitForLicence(s spec.Spec, f facts.Facts) error {
	if f.VGPU == nil && !s.Has("driver.grid") {
		return nil
	}
	for _, g := range f.Driver.GPUs {
		if why := g.Unlicensed(); why != "" {
			return trouble.Wait{
				For: fmt.Sprintf("GPU %s %s", g.Address, why),
				Try: []string{"journalctl -u nvidia-gridd, which says why"},
				Err: noLicence,
			}
		}
	}

	return nil
}

// fabricProblem says what keeps the GPUs from using NVLink. The driver registers them with the
// fabric, in seconds to minutes. A GPU in MIG mode counts as registered: it cannot use NVLink,
// though the links stay active on H100 and later. Sources: "Interoperability with MIG" in
// https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html; NVIDIA's answer in
// https://github.com/NVIDIA/nccl/issues/1716.
func fabricProblem(d host.Driver) (string, error) {
	for _, g := range d.GPUs {
		switch {
		case g.Mode || inFabric(g):
		case g.Fabric.State == "in-progress":
			return "", trouble.Wait{
				For: fmt.Sprintf("GPU %s is still registering with the NVLink fabric", g.Address),
				Try: []string{"if it takes longer than some minutes: systemctl status nvidia-fabricmanager"},
				Err: fabricForming,
			}
		case g.Fabric.State == "completed":
			return fmt.Sprintf("GPU %s could not register with the NVLink fabric: %s", g.Address, g.Fabric.Status), nil
		default:
			return fmt.Sprintf("GPU %s has not registered with the NVLink fabric: %s", g.Address, g.Fabric.State), nil
		}
	}
	return "", nil
}

// inFabric reports whether a GPU has registered with the fabric, or has none to register with.
func inFabric(g host.GPU) bool {
	return g.Fabric.State == "" || g.Fabric.State == "completed" && g.Fabric.Status == ""
}
