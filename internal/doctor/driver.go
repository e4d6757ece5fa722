// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Words that several checks share.
const (
	modules  = "modules.dep of the running kernel, the module's own .modinfo, /sys/module"
	kernel   = "the kernel log since the module was last loaded"
	noGPU    = "no program can use a GPU"
	restarts = "programs on the GPUs, when the driver is loaded again"
)

// planDriver shows what apply would change of the driver: it is two stages'.
func planDriver() string { return trouble.Command("plan packages modules") }

// The driver: from the sources of its module to a library that answers. driver_find.go has what each check does.
func driverChecks() []Check {
	return slices.Concat(moduleChecks(), answerChecks())
}

func moduleChecks() []Check {
	return []Check{
		{
			Code: "DRV-003", Title: "the running kernel has no headers",
			Reads:   "/lib/modules/KERNEL/build, /var/lib/dkms/nvidia",
			Meaning: "DKMS cannot build NVIDIA's modules for this kernel",
			Fix:     "install the headers of exactly this kernel; DKMS then builds the modules", Interrupts: "nothing",
			Find: noHeaders,
			Sources: []string{
				"https://github.com/NVIDIA/gpu-operator/issues/155", "https://github.com/NVIDIA/gpu-operator/issues/85",
				"dkms(8)",
			},
		},
		{
			Code: "DRV-002", Title: "DKMS could not build the modules",
			Reads:      "/var/lib/dkms/nvidia/VERSION/build/make.log, which a build that failed leaves",
			Meaning:    "the running kernel has no module nvidia of this version",
			Fix:        "find the compiler's first error in the log: another compiler than the kernel's, or a driver too old for this kernel",
			Interrupts: "nothing", Find: buildFailed,
			Sources: []string{
				"dkms(8), build", "https://github.com/NVIDIA/gpu-operator/issues/564",
				"https://github.com/NVIDIA/gpu-operator/issues/729",
			},
		},
		{
			Code: "DRV-001", Title: "the running kernel has no module nvidia",
			Reads:      modules + ", /var/lib/dkms/nvidia",
			Meaning:    noGPU + ": the driver was installed for another kernel",
			Fix:        "build or install the module for this kernel, or boot the kernel that has it",
			Interrupts: "the node, if it boots another kernel", Find: noModule,
			Sources: []string{
				"https://github.com/GoogleCloudPlatform/compute-gpu-installation/issues/25",
				"https://github.com/NVIDIA/gpu-operator/issues/910", "dkms(8)",
			},
		},
		{
			Code: "DRV-004", Title: "depmod does not know the module",
			Reads:   modules + "; the folders in which packagers put modules",
			Meaning: "the module's file is there, and modprobe does not find it",
			Fix:     "have depmod read the folders again, then load the module", Command: "depmod -a && modprobe nvidia",
			Interrupts: "nothing", Find: unlisted,
			Sources: []string{"depmod(8)", "modprobe(8)"},
		},
		{
			Code: "DRV-018", Title: "the module was built for another kernel",
			Reads:   "the kernel log: version magic",
			Meaning: noGPU + ": the kernel refuses the module",
			Fix:     "build the module again for the running kernel", Command: "dkms autoinstall && modprobe nvidia",
			Interrupts: "nothing", Find: otherKernel,
			Sources: []string{"modprobe(8), --force-vermagic", "kernel/module/main.c in the kernel's tree: check_modinfo"},
		},
		{
			Code: "DRV-006", Title: "nouveau holds a GPU",
			Reads:      "the driver link of each GPU in /sys/bus/pci/devices",
			Meaning:    "NVIDIA's module does not get the GPU",
			Interrupts: "the node, while it reboots",
			Find:       nouveau,
			Sources: []string{
				"https://github.com/NVIDIA/gpu-operator/issues/8",
				"https://github.com/kubernetes-sigs/image-builder/issues/1468",
			},
		},
		{
			Code: "DRV-007", Title: "the kernel refuses the module's signature",
			Reads:   "Secure Boot, lockdown, sig_enforce, the keys that are trusted, the module's signer, the kernel log",
			Meaning: noGPU + ": under Secure Boot only modules load that are signed with an enrolled key",
			Fix:     "install modules that the distribution signed, or enrol the key that DKMS signs with and confirm it at the console",
			Command: "mokutil --sb-state; " + planDriver(), Interrupts: "the node: the firmware asks at its next boot",
			Find: refusedSignature,
			Sources: []string{
				"kernel_lockdown(7)", "https://docs.kernel.org/admin-guide/module-signing.html",
				"https://github.com/NVIDIA/gpu-operator/issues/1726",
			},
		},
		{
			Code: "DRV-005", Title: "the module nvidia is not loaded",
			Reads:   modules,
			Meaning: noGPU,
			Fix:     "load it; if that fails, the kernel log says why",
			Command: "modprobe nvidia && journalctl --dmesg --grep 'NVRM|nvidia' --lines=20", Interrupts: "nothing",
			Find:    notLoaded,
			Sources: []string{"modprobe(8)", "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"},
		},
		{
			Code: "DRV-008", Title: "the GPU needs the other kind of modules",
			Reads:   kernel,
			Meaning: "open modules serve Turing and newer, proprietary ones serve nothing from Blackwell on",
			Command: planDriver(), Interrupts: restarts, Find: otherFlavour,
			Sources: []string{
				"https://github.com/NVIDIA/open-gpu-kernel-modules", "https://github.com/awslabs/amazon-eks-ami/issues/1697",
			},
		},
		{
			Code: "DRV-016", Title: "the firmware of the machine gave a GPU no room for its memory",
			Reads:   kernel,
			Meaning: "this GPU cannot be used",
			Command: "lspci -vv -d 10de: | grep -E 'controller|Region'", Interrupts: "the node, while it reboots",
			Find: noBAR,
			Sources: []string{
				"https://github.com/NVIDIA/open-gpu-kernel-modules (kernel-open/nvidia/nv-pci.c)",
				"https://forums.developer.nvidia.com/t/this-pci-i-o-region-assigned-to-your-nvidia-device-is-invalid/229899",
			},
		},
		{
			Code: "DRV-009", Title: "the GSP firmware is missing",
			Reads:      "the files that the module asks for below /lib/firmware; the kernel log",
			Meaning:    "the GPU's own processor cannot be started",
			Command:    planDriver(),
			Interrupts: restarts, Find: noFirmware,
			Sources: []string{
				"https://github.com/NVIDIA/open-gpu-kernel-modules/issues/789",
				"https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/gsp.html",
			},
		},
		{
			Code: "DRV-017", Title: "the driver cannot start a GPU",
			Reads:   kernel,
			Meaning: "this GPU cannot be used",
			Command: "journalctl --dmesg --grep NVRM --lines=30", Interrupts: "the node", Find: noAdapter,
			Sources: []string{
				"https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1104",
				"https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html",
			},
		},
		{
			Code: "DRV-014", Title: "kernel module and libraries are of different versions",
			Reads:   "/sys/module/nvidia/version, the files that libcuda.so.1 and libnvidia-ml.so.1 lead to, dpkg's log",
			Meaning: "each new program fails with \"Driver/library version mismatch\"; those that run go on",
			Command: "reboot", Interrupts: "programs on the GPUs; by a reboot the node", Find: mismatch,
			Sources: []string{
				"https://github.com/NVIDIA/gpu-operator/issues/898",
				"https://github.com/NVIDIA/nvidia-container-toolkit/issues/394",
				"https://github.com/pando85/homelab/pull/4110",
			},
		},
		{
			Code: "DRV-013", Title: "the driver's libraries are missing",
			Reads:   "libcuda.so.1 and libnvidia-ml.so.1",
			Meaning: "the module is loaded, and no program can talk to it",
			Fix:     "install the libraries of exactly the module's version", Command: planDriver(),
			Interrupts: "nothing", Find: noLibraries,
			Sources: []string{
				"https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",
				"https://docs.nvidia.com/deploy/nvml-api/",
			},
		},
	}
}

func answerChecks() []Check {
	return []Check{
		{
			Code: "DRV-010", Title: "a device file of the driver is missing or wrong",
			Reads:   "/dev/nvidiactl, /dev/nvidiaN of each GPU",
			Meaning: "programs and containers cannot open the GPU",
			Fix:     "have the driver's own tool make it", Interrupts: "nothing", Find: noDeviceFile,
			Sources: []string{"nvidia-modprobe(1)", "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"},
		},
		{
			Code: "DRV-012", Title: "the device file of CUDA's memory is missing",
			Reads:   "/sys/module/nvidia_uvm, /dev/nvidia-uvm",
			Meaning: "CUDA does not start, in containers first, though nvidia-smi works",
			Fix:     "have the driver's own tool make it", Command: "nvidia-modprobe -u -c 0", Interrupts: "nothing",
			Find:    noUVMFile,
			Sources: []string{"nvidia-modprobe(1), -u", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/394"},
		},
		{
			Code: "DRV-011", Title: "the module nvidia-uvm is missing",
			Reads:   modules,
			Meaning: "CUDA does not start, though nvidia-smi works",
			Fix:     "install the modules of the driver as a whole, again",
			Command: "dkms autoinstall --force && depmod -a && modprobe nvidia-uvm", Interrupts: "nothing", Find: noUVM,
			Sources: []string{"nvidia-modprobe(1), -u", "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"},
		},
		{
			Code: "DRV-015", Title: "the driver does not answer",
			Reads:   "NVML, the driver's library",
			Meaning: noGPU,
			Fix:     "the kernel log says what the driver found; reboot if it names nothing",
			Command: "journalctl --dmesg --grep 'NVRM|Xid' --lines=30", Interrupts: "nothing; by a reboot the node", Find: silent,
			Sources: []string{
				"https://docs.nvidia.com/deploy/nvml-api/", "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html",
			},
		},
	}
}
