//go:build cgo

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/sorting"
)

// Driver is View's. It reads all GPUs in one session.
func (d *NVML) Driver(ctx context.Context) (host.Driver, error) {
	var found host.Driver
	err := d.session(ctx, readLimit, func(s nvmlSession) (err error) {
		found, err = s.readAll(ctx)
		return err
	})
	if err != nil {
		return host.Driver{}, err
	}

	// NVML does not say the address of a GPU without a handle, but /proc lists the GPUs in NVML's
	// order.
	lost := d.lostAddresses(found.GPUs)
	for i := range found.GPUs {
		if found.GPUs[i].Address == "" && len(lost) > 0 {
			found.GPUs[i].Address = lost[0]
			lost = lost[1:]
		}
	}

	sorting.By(found.GPUs, byAddress)
	return found, nil
}

// byAddress compares PCI addresses as numbers: a domain may have more than four digits.
func byAddress(a, b host.GPU) int {
	return cmp.Or(len(a.Address)-len(b.Address), strings.Compare(a.Address, b.Address))
}

// readAll reads all GPUs, in NVML's order.
func (s nvmlSession) readAll(ctx context.Context) (host.Driver, error) {
	found := s.versions()
	s.seen.version = found.Version
	count, ret := s.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return found, s.driver.because(nvmlCode(ret))
	}
	if count == 0 {
		return found, &host.NoDriver{
			Why:  "driver " + found.Version + " is loaded and sees no GPU",
			Try:  "dmesg | grep NVRM says why",
			Code: "GPU_NOT_FOUND",
		}
	}

	s.driver.steps.say(driverAnswer{Count: count})
	for i, attached := range attach(s, count, s.driver.steps) {
		if err := context.Cause(ctx); err != nil {
			return found, err
		}
		gpu, err := s.read(i, attached)
		if err != nil {
			return found, err
		}
		found.GPUs = append(found.GPUs, gpu)
		s.driver.steps.say(driverAnswer{Read: &i})
	}

	return found, nil
}

func (s nvmlSession) versions() host.Driver {
	var found host.Driver
	if version, ret := s.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		found.Version = printable(version)
	}
	if version, ret := s.SystemGetNVMLVersion(); ret == nvml.SUCCESS {
		_, found.NVML, _ = strings.Cut(printable(version), ".") // 13.580.95.05: CUDA's major leads
	}
	if version, ret := s.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS && version > 0 {
		found.CUDA = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	}
	return found
}

// reading is one GPU that is being read.
type reading struct {
	nvmlSession
	nvml.Device
	gpu  host.GPU
	lost string // the first answer that a GPU that works does not give
}

// handle is NVML's answer to the question for a GPU's handle.
type handle struct {
	nvml.Device
	ret nvml.Return
}

// attach asks for the handles of all GPUs side by side: the driver attaches a GPU that no process
// holds at this call, which takes 1 to 3 seconds. NVML may be called from several threads
// (https://docs.nvidia.com/deploy/nvml-api/nvml-api-reference.html), and since R550 the driver
// starts several GPUs at a time (RmRelaxedGspInitLocking in
// https://github.com/NVIDIA/open-gpu-kernel-modules, nvrm_registry.h).
func attach(s nvml.Interface, count int, done *steps) []handle {
	all := make([]handle, count)
	var under sync.WaitGroup
	for i := range all {
		under.Go(func() {
			all[i].Device, all[i].ret = s.DeviceGetHandleByIndex(i)
			done.say(driverAnswer{Attached: &i})
		})
	}

	under.Wait()
	return all
}

// read reads the GPU with an index. A GPU that does not answer is Lost; the error is for a GPU that
// only root can read.
func (s nvmlSession) read(index int, of handle) (host.GPU, error) {
	lost := host.GPU{Index: index, Minor: -1} // what is known of the GPU if it does not answer
	r := reading{nvmlSession: s, Device: of.Device}
	if of.ret != nvml.SUCCESS {
		lost.Lost = whyLost("nvmlDeviceGetHandleByIndex", of.ret)
		return lost, nil
	}
	pci, ret := r.GetPciInfo()
	if !r.must("nvmlDeviceGetPciInfo", ret) {
		lost.Lost = r.lost
		return lost, nil
	}

	lost.Address = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
	lost.Device = fmt.Sprintf("0x%08X", pci.PciDeviceId)
	lost.Sub = fmt.Sprintf("0x%08X", pci.PciSubSystemId)
	r.gpu = lost
	for _, part := range []func() error{r.identity, r.health, r.mig} {
		if err := part(); err != nil {
			return host.GPU{}, err
		}
		if r.lost != "" {
			lost.Lost = r.lost
			return lost, nil
		}
	}

	s.seen.handle(r.gpu.Address, of.Device)
	return r.gpu, nil
}

// whyLost says in words why a GPU does not answer.
func whyLost(call string, ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return "it has fallen off the bus"
	case nvml.ERROR_RESET_REQUIRED:
		return "it must be reset before it can be used"
	case nvml.ERROR_INSUFFICIENT_POWER:
		return "its power cables are not attached"
	case nvml.ERROR_IRQ_ISSUE:
		return "its interrupts do not arrive"
	}
	return call + " answers " + nvmlCode(ret)
}

// got reports whether NVML gave an optional answer. A GPU that is lost, or must be reset, gives no
// answers at all: got notes that.
func (r *reading) got(call string, ret nvml.Return) bool {
	if r.lost == "" && (ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED) {
		r.lost = whyLost(call, ret)
	}
	return ret == nvml.SUCCESS
}

// must is got for an answer that every GPU gives: a GPU without it is lost, so that no
// plan uses it.
func (r *reading) must(call string, ret nvml.Return) bool {
	if ret != nvml.SUCCESS && r.lost == "" {
		r.lost = whyLost(call, ret)
	}
	return ret == nvml.SUCCESS
}

// text reads a string; "" if the GPU has none.
func (r *reading) text(call string, read func() (string, nvml.Return)) string {
	text, ret := read()
	if !r.got(call, ret) {
		return ""
	}
	return printable(text)
}

func (r *reading) identity() error {
	g := &r.gpu
	if minor, ret := r.GetMinorNumber(); r.got("nvmlDeviceGetMinorNumber", ret) {
		g.Minor = minor
	}
	if known, ok := r.seen.named[g.Address]; ok {
		known.Minor = g.Minor
		*g = known
		return nil
	}

	g.Name = r.text("nvmlDeviceGetName", r.GetName)
	g.UUID = r.text("nvmlDeviceGetUUID", r.GetUUID)
	g.Serial = r.text("nvmlDeviceGetSerial", r.GetSerial)
	if g.Serial == "0" { // the board has none
		g.Serial = ""
	}
	if memory, ret := r.GetMemoryInfo(); r.got("nvmlDeviceGetMemoryInfo", ret) {
		g.Memory = memory.Total
	}
	if major, minor, ret := r.GetCudaComputeCapability(); r.got("nvmlDeviceGetCudaComputeCapability", ret) {
		g.Compute = fmt.Sprintf("%d.%d", major, minor)
	}
	if arch, ret := r.GetArchitecture(); r.got("nvmlDeviceGetArchitecture", ret) {
		g.Arch = archName(arch)
	}

	if r.lost == "" {
		r.seen.named[g.Address] = *g
	}
	return nil
}

// archName is the name of an architecture as GPU feature discovery writes it.
func archName(arch nvml.DeviceArchitecture) string {
	names := map[nvml.DeviceArchitecture]string{
		nvml.DEVICE_ARCH_KEPLER:    "kepler",
		nvml.DEVICE_ARCH_MAXWELL:   "maxwell",
		nvml.DEVICE_ARCH_PASCAL:    "pascal",
		nvml.DEVICE_ARCH_VOLTA:     "volta",
		nvml.DEVICE_ARCH_TURING:    "turing",
		nvml.DEVICE_ARCH_AMPERE:    "ampere",
		nvml.DEVICE_ARCH_ADA:       "ada-lovelace",
		nvml.DEVICE_ARCH_HOPPER:    "hopper",
		nvml.DEVICE_ARCH_BLACKWELL: "blackwell",
		nvml.DEVICE_ARCH_RUBIN:     "rubin",
	}
	return names[arch]
}
