// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// cudaFails starts CUDA as a program in a pod does, in a child, and finds that it does not start.
// It makes no context on a GPU, so that neither programs that run nor the exclusive mode are in its
// way. Where the module nvidia-uvm is not loaded it does not ask: cuInit as root loads the module,
// and doctor changes nothing.
func cudaFails(m *Machine) []Finding {
	driver := m.Facts().Driver
	if driver == nil || m.own.NoCUDA || !m.has("/sys/module/nvidia_uvm") {
		return nil
	}
	answers, err := m.View.CUDA(m.ctx, "", driver.Shown()...)
	switch {
	case errors.As(err, &host.Later{}):
		return nil
	case err != nil:
		m.cannotRead("whether CUDA starts", err)
		return nil
	}

	for _, answer := range answers {
		if answer.Late && m.own.Wait < cudaIsSlow {
			m.cannotRead("whether CUDA starts", fmt.Errorf("%s; %s", answer.Ended, waitsLonger()))
			return nil
		}
		if !answer.Works() && !m.isUsed(answer) {
			return []Finding{m.cudaFault(answer)}
		}
	}

	return nil
}

// cudaIsSlow is how long CUDA may take to start on a machine without a fault: the limit of the
// gate's check, in cloud/node.
const cudaIsSlow = 10 * time.Second

// isUsed reports whether CUDA says no more than that programs have the GPUs to themselves.
func (m *Machine) isUsed(answer host.CUDA) bool {
	hasClients := func(gpu host.GPU) bool { return len(gpu.Clients) > 0 }
	return answer.Code == host.CUDABusy && slices.ContainsFunc(m.answering(), hasClients)
}

// reloadUVM loads the module of CUDA's memory again, where no program uses the GPUs.
const reloadUVM = "sudo modprobe -r nvidia-uvm && sudo modprobe nvidia-uvm"

// cudaFault says what an answer of CUDA's means. Sources: cuda.h, CUresult;
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html.
func (m *Machine) cudaFault(answer host.CUDA) Finding {
	said := fmt.Sprintf("cuInit answers %d", answer.Code)
	if answer.Name != "" {
		said += " (" + answer.Name + ")"
	}
	switch {
	case answer.NoLibrary != "":
		return Finding{
			What:    "libcuda.so.1 cannot be loaded: " + answer.NoLibrary,
			Fix:     "install the package that has libcuda.so.1 in the driver's version",
			Command: planDriver(),
		}
	case answer.Ended != "":
		return Finding{
			What:    "the process that started CUDA did not succeed: " + answer.Ended,
			Fix:     "read in the kernel log what the driver found; without nvidia-persistenced each start initialises all GPUs",
			Command: "sudo journalctl --dmesg --grep 'NVRM|Xid' --lines=30",
		}
	case answer.NoUVM != "":
		return Finding{
			What:    "/dev/nvidia-uvm cannot be opened: " + answer.NoUVM,
			Fix:     "have the driver's own tool make the device file",
			Command: "sudo nvidia-modprobe -u -c 0",
		}
	case answer.Code == 0:
		return Finding{
			What:    fmt.Sprintf("CUDA counts %d devices, and the driver lists %d for it", answer.Devices, len(answer.Shown)),
			Fix:     "read in the kernel log why CUDA leaves a GPU out",
			Command: "sudo journalctl --dmesg --grep 'NVRM|Xid' --lines=30",
		}
	}

	finding := Finding{What: said}
	switch answer.Code {
	case host.CUDANotInitialized:
		finding.Fix = "load the module of CUDA's memory again, once no program uses the GPUs; in a container this number says that it got no device file"
		finding.Command = reloadUVM
	case host.CUDABusy:
		finding.What += ": no GPU lets another program in, and none has a program"
		finding.Fix = "set the compute mode DEFAULT, and end programs that hang; if no GPU is in another mode, reset the GPUs"
		finding.Command = "nvidia-smi -q -d COMPUTE; sudo nvidia-smi --compute-mode=DEFAULT"
	case host.CUDANoDevice:
		finding.What += ": CUDA sees none of " + trouble.Count(len(answer.Shown), "device")
		finding.Fix = "compare the device files with the driver's GPUs, and read in the kernel log why CUDA takes none"
		finding.Command = "ls -l /dev/nvidia*; sudo journalctl --dmesg --grep 'NVRM|Xid' --lines=30"
	case host.CUDASystemNotReady:
		if m.fabric() == "" {
			return notReady(finding)
		}
		finding.What += ": the NVLink fabric is not ready"
		finding.Fix = "start the fabric manager in the driver's version, and wait until each GPU is registered: nvidia-smi -q shows Fabric"
		finding.Command = "sudo systemctl status nvidia-fabricmanager; sudo tail -n 40 /var/log/fabricmanager.log"
	case host.CUDAMismatch, host.CUDANoCompat:
		finding.What += ": " + answer.Library + " does not fit the module that is loaded"
		finding.Fix = "load the module of the libraries' version: reboot; or remove a libcuda of another version that the loader finds first"
		finding.Command = "ldconfig -p | grep libcuda; cat /sys/module/nvidia/version"
	default:
		finding.Fix = "load the module of CUDA's memory again, once no program uses the GPUs; if that does not help, reboot"
		finding.Command = reloadUVM
	}

	return finding
}

// notReady is the answer 802 of a machine without an NVLink fabric: GPUs of a confidential machine
// take no work until the operator has attested them, and says so. Sources of the answer and of -srs
// 1, which sets that state: https://github.com/NVIDIA/nvtrust/issues/56;
// https://github.com/google/go-tpm-tools/pull/542. Sources of -grs, which prints it:
// gpu-operator/gpu-operator-confidential-containers.rst in
// https://github.com/NVIDIA/cloud-native-docs;
// https://github.com/confidential-dot-ai/confidential-os-builder/issues/71.
func notReady(finding Finding) Finding {
	finding.What += ": the GPUs are not ready, and no NVLink fabric is here that they could wait for"
	finding.Fix = "where confidential computing is on, attest the GPUs, and set them to the ready state; if it is off, read in the kernel log what the driver found"
	finding.Command = "nvidia-smi conf-compute -grs; sudo nvidia-smi conf-compute -srs 1"
	return finding
}

// noUVMLoaded says that no program has used CUDA since the boot: cuInit as root, or the driver's
// own tool, loads the module; a program in a pod cannot. Sources: nvidia-modprobe(1), -u;
// https://github.com/NVIDIA/nvidia-container-toolkit/issues/394.
func noUVMLoaded(m *Machine) []Finding {
	kernel, ok := m.running()
	_, answers := m.NVML()
	if !ok || !answers || !m.ownDriver() || m.has("/sys/module/nvidia_uvm") {
		return nil
	}
	isUVM := func(file string) bool { return strings.Contains(file, "-uvm.ko") }
	if !slices.ContainsFunc(kernel.Files, isUVM) {
		return nil // DRV-011
	}
	return []Finding{{
		What: "the module nvidia-uvm is not loaded, and a program in a pod cannot load it: sudo nvidia-modprobe -u -c 0",
		Part: "unloaded",
		Note: true,
	}}
}
