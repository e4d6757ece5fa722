// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
)

// broken are the machines of the broken hosts: each breaks the working one as a public report says.
var broken = []struct {
	name   string
	report string // where the fault is described as it shows
	breaks func(r *recorded)
	want   string // the root causes
}{
	{"upgraded unattended", "https://github.com/pando85/homelab/pull/4110, https://github.com/NVIDIA/gpu-operator/issues/898", func(r *recorded) {
		upgrade(r, "580.159.03")
		r.silent("LIB_RM_VERSION_MISMATCH", "the kernel module is of driver 580.95.05 and the library of 580.159.03")
	}, "DRV-014"},
	{"libraries upgraded, modules held", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/394", func(r *recorded) {
		upgrade(r, "580.159.03")
		r.change("var/lib/dpkg/status", "Package: nvidia-dkms-580-server-open\nStatus: install ok installed\nArchitecture: amd64\nVersion: 580.159.03", "Package: nvidia-dkms-580-server-open\nStatus: hold ok installed\nArchitecture: amd64\nVersion: 580.95.05")
		r.module("6.8.0-88-generic", "580.95.05")
		r.silent("LIB_RM_VERSION_MISMATCH", "the kernel module is of driver 580.95.05 and the library of 580.159.03")
	}, "PKG-003"},
	{"new kernel without a module", "https://github.com/GoogleCloudPlatform/compute-gpu-installation/issues/25", func(r *recorded) {
		r.newKernel()
		r.put("usr/src/linux-headers-6.8.0-90-generic/Makefile", "VERSION = 6\n")
		r.put("usr/lib/modules/6.8.0-90-generic/build link=/usr/src/linux-headers-6.8.0-90-generic", "")
	}, "DRV-001"},
	{"running kernel removed", "modprobe(8)", func(r *recorded) {
		r.newKernel()
		r.remove("usr/lib/modules/6.8.0-90-generic")
	}, "DRV-001"},
	{"new kernel without headers", "https://github.com/NVIDIA/gpu-operator/issues/155", func(r *recorded) { r.newKernel() }, "DRV-003"},
	{"DKMS cannot build", "https://github.com/NVIDIA/gpu-operator/issues/729", func(r *recorded) {
		r.newKernel()
		r.put("usr/src/linux-headers-6.8.0-90-generic/Makefile", "VERSION = 6\n")
		r.put("usr/lib/modules/6.8.0-90-generic/build link=/usr/src/linux-headers-6.8.0-90-generic", "")
		r.put("var/lib/dkms/nvidia/580.95.05/build/make.log", "DKMS make.log for nvidia-580.95.05 for kernel 6.8.0-90-generic (x86_64)\nnvidia/nv.c:1:2: error: implicit declaration of function 'pci_x'\nmake: *** [Makefile:84: modules] Error 2\n")
		r.package_("nvidia-dkms-580-server-open", "install ok half-configured")
	}, "DRV-002"},
	{"module not in modules.dep", "depmod(8)", func(r *recorded) {
		r.unloaded()
		r.put("usr/lib/modules/6.8.0-88-generic/modules.dep", "")
	}, "DRV-004"},
	{"module not loaded", "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/", func(r *recorded) { r.unloaded() }, "DRV-005"},
	{"module of another kernel", "modprobe(8)", func(r *recorded) {
		r.unloaded()
		r.says("nvidia: version magic '6.8.0-79-generic SMP preempt mod_unload modversions ' should be '6.8.0-88-generic SMP preempt mod_unload modversions '")
	}, "DRV-018"},
	{"nouveau", "https://github.com/NVIDIA/gpu-operator/issues/8", func(r *recorded) {
		r.unloaded()
		for _, address := range r.gpus() {
			r.bind(address, "nouveau")
		}
	}, "DRV-006"},
	{"Secure Boot", "https://github.com/NVIDIA/gpu-operator/issues/1726", func(r *recorded) {
		r.unloaded()
		r.put("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
		r.says("Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7")
	}, "DRV-007"},
	{"Secure Boot, log not readable", "https://docs.kernel.org/admin-guide/module-signing.html", func(r *recorded) {
		r.unloaded()
		r.put("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
		r.change("sim.toml", `argv = ["journalctl"`, `argv = ["no-journalctl"`)
	}, "DRV-007"},
	{"proprietary modules on a GPU that needs the open ones", "https://github.com/awslabs/amazon-eks-ami/issues/1697", func(r *recorded) {
		r.noAdapters()
		r.says("NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330) installed in this system requires use of the NVIDIA open kernel modules.")
	}, "DRV-008"},
	{"open modules on a GPU without a GSP, and unloaded again", "https://github.com/negativo17/nvidia-driver/issues/158", func(r *recorded) {
		r.unloaded()
		r.says("NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:1db6)", "NVRM: installed in this system is not supported by open", "NVRM: None of the NVIDIA devices were initialized.")
	}, "DRV-008"},
	{"firmware missing", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/789", func(r *recorded) {
		r.noAdapters()
		r.remove("usr/lib/firmware/nvidia/580.95.05")
		r.says("nvidia 0000:18:00.0: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin failed with error -2", "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x61:0x56:1697)")
	}, "DRV-009"},
	{"no room for the memory", "https://forums.developer.nvidia.com/t/this-pci-i-o-region-assigned-to-your-nvidia-device-is-invalid/229899", func(r *recorded) {
		r.drop(7)
		r.says("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:", "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:db:00.0)")
	}, "DRV-016"},
	{"one GPU not started", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1104", func(r *recorded) {
		r.drop(7)
		r.says("NVRM: GPU 0000:db:00.0: RmInitAdapter failed! (0x62:0x40:2477)", "NVRM: GPU 0000:db:00.0: rm_init_adapter failed, device minor number 7")
	}, "DRV-017"},
	{"libraries removed", "https://docs.nvidia.com/deploy/nvml-api/", func(r *recorded) {
		r.remove("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
		r.remove("usr/lib/x86_64-linux-gnu/libcuda.so.1")
		r.silent("LIBRARY_NOT_FOUND", "the kernel module nvidia 580.95.05 is loaded, but the library libnvidia-ml.so.1 is not found")
	}, "DRV-013"},
	{"device file missing", "nvidia-modprobe(1)", func(r *recorded) { r.remove("dev/nvidia3") }, "DRV-010"},
	{"device file is a folder", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48", func(r *recorded) { r.put("dev/nvidia3/", "") }, "DRV-010"},
	{"nvidia-uvm missing on disk", "nvidia-modprobe(1)", func(r *recorded) {
		r.put("usr/lib/modules/6.8.0-88-generic/modules.dep", "updates/dkms/nvidia.ko:\n")
		r.remove("sys/module/nvidia_uvm")
		r.remove("dev/nvidia-uvm")
	}, "DRV-011"},
	{"nvidia-uvm without a file", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/394", func(r *recorded) { r.remove("dev/nvidia-uvm") }, "DRV-012"},
	{"driver silent", "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html", func(r *recorded) { r.silent("UNKNOWN", "NVML cannot be initialised: UNKNOWN") }, "DRV-015"},
	{"driver hangs, two programs with it", "https://github.com/NVIDIA/NVSentinel/issues/1576", func(r *recorded) {
		r.silent(host.Overdue, "the driver has not answered for 10s")
		r.put("proc/devices", "Character devices:\n195 nvidia\n")
		r.put("proc/4242/comm", "dcgm-exporter\n")
		r.put("proc/4242/stat", "4242 (dcgm-exporter) D 1 4242 4242 0 -1\n")
		r.put("proc/4242/fd/3 link=/dev/nvidiactl", "")
	}, "DRV-019"},
	{"GSP times out, nvidia-smi hangs", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446", func(r *recorded) {
		r.silent(host.Overdue, "the driver has not answered for 10s")
		r.says("NVRM: Xid (PCI:0000:18:00): 119, pid=1346198, name=nvidia-smi, Timeout waiting for RPC from GSP! Expected function 103 (GSP_RM_ALLOC) (0x80 0x38).")
	}, "GPU-011"},
	{"dcgm-exporter killed, GPU frozen", "https://github.com/NVIDIA/dcgm-exporter/issues/84", func(r *recorded) {
		r.gpu(0, `recovery = "reset"`)
		r.says("NVRM: Xid (PCI:0000:18:00): 120, pid='<unknown>', name=<unknown>, GSP Error: Task 1 raised error code 0x5 for reason 0x0 at 0x63f01ac", "NVRM: Xid (PCI:0000:18:00): 119, pid='<unknown>', name=<unknown>, Timeout waiting for RPC from GSP! Expected function FREE (0x0 0x0).")
	}, "GPU-011"},
	{"Xid 45 alone, and nvidia-smi in state D", "https://github.com/leptonai/gpud/pull/117", func(r *recorded) {
		r.silent(host.Overdue, "the driver has not answered for 10s")
		r.says("NVRM: Xid (PCI:0000:18:00): 45, pid=1496200, name=distprovers-gpu, Ch 0000000a", "INFO: task cache_mgr_event:620917 blocked for more than 120 seconds.")
	}, "DRV-019"},
	{"all links of a B300 at once", "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1355", func(r *recorded) {
		for nth := range 2 {
			r.gpu(nth, `recovery = "reset"`)
		}
		r.says("NVRM: Xid (PCI:0000:18:00): 145, RLW_SRC_TRACK Fatal XC0 i0 Link -1 (0x000000e2 0x00000001 0x0)", "NVRM: Xid (PCI:0000:2a:00): 145, RLW_SRC_TRACK Fatal XC0 i0 Link -1 (0x000000e2 0x00000001 0x0)")
	}, "GPU-011"},
	{"policy for memory", "https://github.com/openshift/machine-config-operator/pull/2718", func(r *recorded) {
		r.fails("kubelet")
		r.put("var/lib/kubelet/memory_manager_state", `{"policyName":"Static","machineState":{}}`)
	}, "KUB-012"},
	{"two faults: policy for memory, and the GSP", "https://github.com/openshift/machine-config-operator/pull/2718, https://github.com/NVIDIA/dcgm-exporter/issues/84", func(r *recorded) {
		r.fails("kubelet")
		r.put("var/lib/kubelet/memory_manager_state", `{"policyName":"Static","machineState":{}}`)
		r.gpu(0, `recovery = "reset"`)
		r.says("NVRM: Xid (PCI:0000:18:00): 119, pid=1, name=x, Timeout waiting for RPC from GSP!")
	}, "GPU-011 KUB-012"},
	{"two faults: driver hangs, and swap keeps kubelet down", "https://github.com/NVIDIA/NVSentinel/issues/1576, https://github.com/kubernetes/kubernetes/issues/50373", func(r *recorded) {
		r.silent(host.Overdue, "the driver has not answered for 10s")
		r.fails("kubelet")
		r.put("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/swapfile  file  3991548  0  -2\n")
	}, "DRV-019 KUB-006"},
	{"two faults: a link is down, and no name is resolved", "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html, resolv.conf(5)", func(r *recorded) {
		r.gpu(2, "linksdown = [3]")
		r.remove("run/systemd/resolve")
	}, "SYS-005 GPU-015"},
	{"killed dpkg", "https://github.com/Azure/AKS/issues/729", func(r *recorded) {
		r.put("var/lib/dpkg/updates/0000", "Package: man-db\nStatus: install ok half-configured\nArchitecture: amd64\nVersion: 2.12.0-4build2\n")
	}, "PKG-004"},
	{"half-configured package of the driver", "https://github.com/NVIDIA/gpu-operator/issues/564", func(r *recorded) { r.package_("nvidia-compute-utils-580-server", "install ok half-configured") }, "PKG-001"},
	{"half-configured other package", "https://github.com/Azure/AKS/issues/729", func(r *recorded) { r.package_("man-db", "install ok half-configured") }, "PKG-002"},
	{"GPU off the bus", "https://github.com/NVIDIA/k8s-device-plugin/issues/2038", func(r *recorded) {
		r.put("sys/bus/pci/devices/0000:18:00.0/config base64", "/////w==\n")
		r.gpu(0, `lost = "it has fallen off the bus"`)
		r.says("NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
	}, "GPU-001"},
	{"GPU off the bus, and on again", "https://github.com/NVIDIA/open-gpu-kernel-modules/discussions/1496", func(r *recorded) {
		r.says("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.", "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build")
	}, ""},
	{"GPU does not answer", "https://docs.nvidia.com/deploy/nvml-api/", func(r *recorded) { r.gpu(2, `lost = "it must be reset before it can be used"`) }, "GPU-003"},
	{"GPU missing in the driver", "https://github.com/NVIDIA/k8s-device-plugin/issues/2038", func(r *recorded) { r.drop(7) }, "GPU-002"},
	{"row remap pending", "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html", func(r *recorded) {
		r.gpu(1, "remapwaits = true\nuncorrected = 1")
		r.says("NVRM: Xid (PCI:0000:2a:00): 48, pid=4242, name=python, Ch 00000008", "NVRM: Xid (PCI:0000:2a:00): 63, pid=4242, name=python, Row Remapper: New row (0x0000000012345678) marked for remapping, reset gpu to activate.",
			"NVRM: Xid (PCI:0000:2a:00): 94, pid=4242, name=python, Contained: HBM", "NVRM: Xid (PCI:0000:2a:00): 45, pid=4242, name=python, Ch 00000008")
	}, "GPU-006"},
	{"row remap failed", "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html", func(r *recorded) {
		r.gpu(1, "remapfails = true")
		r.says("NVRM: Xid (PCI:0000:2a:00): 64, pid=4242, name=python, Row Remapper: Failed to remap row")
	}, "GPU-007"},
	{"uncorrected errors", "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html", func(r *recorded) { r.gpu(1, "uncorrected = 2") }, "GPU-005"},
	{"heat", "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html", func(r *recorded) { r.gpu(4, `slowed = "heat"`) }, "GPU-008"},
	{"power brake", "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html", func(r *recorded) { r.gpu(4, `slowed = "power-brake"`) }, "GPU-009"},
	{"power limit", "nvidia-smi(1)", func(r *recorded) { r.gpu(4, "powerlimit = 350\npowerusual = 700") }, "GPU-013"},
	{"compute mode", "nvidia-smi(1)", func(r *recorded) { r.gpu(4, "prohibited = true") }, "GPU-014"},
	{"link down", "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html", func(r *recorded) { r.gpu(4, "linksdown = [3]") }, "GPU-015"},
	{"fabric unhealthy, all green", "https://github.com/NVIDIA/NVSentinel/issues/883", func(r *recorded) {
		r.gpu(0, `fabric = { state = "completed", faults = "its route is unhealthy" }`)
	}, "FAB-003"},
	{"bad riser", "https://docs.nvidia.com/deploy/gpu-debug-guidelines/index.html", func(r *recorded) { r.metal("8") }, "GPU-004"},
	{"slot with fewer lanes", "https://docs.kernel.org/admin-guide/abi-testing.html", func(r *recorded) {
		r.metal("8")
		r.put("sys/devices/pci0000:17/0000:17:01.0/max_link_width", "8\n")
	}, ""},
	{"persistenced died", "https://docs.nvidia.com/deploy/driver-persistence/overview.html", func(r *recorded) { r.fails("nvidia-persistenced") }, "GPU-010"},
	{"fabric manager of another version", "https://github.com/NVIDIA/gpu-operator/issues/544", func(r *recorded) {
		r.change("var/lib/dpkg/status", "Version: 580.95.05-0ubuntu0.24.04.1", "Version: 580.159.03-0ubuntu0.24.04.1")
		r.fails("nvidia-fabricmanager")
		r.gpu(0, `fabric = { state = "in-progress" }`)
	}, "FAB-001"},
	{"fabric manager died", "https://github.com/NVIDIA/gpu-operator/issues/1595", func(r *recorded) {
		r.fails("nvidia-fabricmanager")
		r.gpu(0, `fabric = { state = "in-progress" }`)
	}, "FAB-002"},
	{"fabric not registered", "https://github.com/NVIDIA/gpu-operator/issues/2781", func(r *recorded) { r.gpu(0, `fabric = { state = "completed", status = "UNKNOWN" }`) }, "FAB-003"},
	{"kubelet ends again and again", "https://github.com/kubernetes/kubernetes/issues/83936", func(r *recorded) { r.loops("kubelet") }, "KUB-014"},
	{"a mode that the toolkit does not have", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1151", func(r *recorded) {
		r.put("usr/bin/nvidia-container-runtime mode=0755", "")
		r.put("etc/containerd/config.toml", string(r.find("etc/containerd/config.toml").Data)+"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\nruntime_type = \"io.containerd.runc.v2\"\noptions = {BinaryName = \"/usr/bin/nvidia-container-runtime\"}\n")
		r.put("etc/nvidia-container-runtime/config.toml", "[nvidia-container-runtime]\nmode = \"bogus\"\n")
	}, "RUN-012"},
	{"an import that is not there", "https://github.com/NVIDIA/gpu-operator/issues/2646", func(r *recorded) {
		r.change("etc/containerd/config.toml", "version = 2\n", "version = 2\nimports = [\"/etc/containerd/nvidia.toml\"]\n")
	}, "RUN-011"},
	{"engine ends again and again", "https://github.com/moby/moby/issues/34091", func(r *recorded) { r.loops("containerd") }, "RUN-010"},
	{"engine ends again and again, and kubelet with it", "https://github.com/moby/moby/issues/34091", func(r *recorded) {
		r.loops("containerd")
		r.loops("kubelet")
	}, "RUN-010"},
	{"kubelet ends again and again, with swap", "https://github.com/kubernetes/kubernetes/issues/50373", func(r *recorded) {
		r.loops("kubelet")
		r.put("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/swapfile  file  3991548  0  -2\n")
	}, "KUB-006"},
	{"two faults: kubelet ends again and again, and persistenced", "", func(r *recorded) {
		r.loops("kubelet")
		r.fails("nvidia-persistenced")
	}, "GPU-010 KUB-014"},
	{"clock behind", "systemd-timesyncd.service(8)", func(r *recorded) {
		status := r.find("var/lib/dpkg/status")
		status.Name += " ctime=2026-11-22T10:00:00Z"
	}, "SYS-003"},
	{"clock not synchronised", "adjtimex(2)", func(r *recorded) { r.change("sim.toml", "NTPSynchronized=yes", "NTPSynchronized=no") }, "SYS-004"},
	{"resolv.conf leads nowhere", "https://kubernetes.io/docs/tasks/administer-cluster/dns-debugging-resolution/", func(r *recorded) { r.remove("run/systemd/resolve") }, "SYS-005"},
	{"resolv.conf is empty", "resolv.conf(5)", func(r *recorded) { r.put("run/systemd/resolve/stub-resolv.conf", "# nothing\n") }, "SYS-005"},
	{"root became read-only", "https://docs.kernel.org/admin-guide/ext4.html", func(r *recorded) {
		r.change("proc/self/mounts", "/dev/vda1 / ext4 rw,", "/dev/vda1 / ext4 ro,")
		r.package_("man-db", "install ok half-configured")
	}, "SYS-006"},
	{"XFS was shut down", "xfs(5)", func(r *recorded) {
		r.says("XFS (vdb1): Filesystem has been shut down due to log error (0x2).", "XFS (vdb1): Please unmount the filesystem and rectify the problem(s).")
	}, "SYS-006"},
	{"two faults: persistenced and DNS", "", func(r *recorded) {
		r.fails("nvidia-persistenced")
		r.remove("run/systemd/resolve")
	}, "SYS-005 GPU-010"},
	{"two faults: GPU off the bus and a driver upgrade half done", "", func(r *recorded) {
		r.put("sys/bus/pci/devices/0000:18:00.0/config base64", "/////w==\n")
		r.gpu(0, `lost = "it has fallen off the bus"`)
		r.package_("nvidia-utils-580-server", "install ok unpacked")
		r.says("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.")
	}, "PKG-001 GPU-001"},
	{"two faults: one GPU has an Xid 119, another a remap", "", func(r *recorded) {
		r.gpu(1, "remapwaits = true")
		r.gpu(4, `recovery = "reset"`)
		r.says("NVRM: Xid (PCI:0000:9a:00): 119, pid=99, name=python, Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL)", "NVRM: Xid (PCI:0000:9a:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
	}, "GPU-006 GPU-011"},
	{"two faults: nouveau and a half-configured package", "", func(r *recorded) {
		r.unloaded()
		r.bind("0000:18:00.0", "nouveau")
		r.package_("man-db", "install ok half-configured")
	}, "PKG-002 DRV-006"},
}

// upgrade replaces all packages of the driver, as unattended-upgrades does, and leaves the module that is loaded.
func upgrade(r *recorded, version string) {
	for _, lib := range []string{"libnvidia-ml.so", "libcuda.so"} {
		at := "usr/lib/x86_64-linux-gnu/" + lib + "."
		r.remove(at + "580.95.05")
		r.put(at+"1 link="+lib+"."+version, "")
		r.put(at+version+" size=2196648", "")
	}
	r.change("var/lib/dpkg/status", "Version: 580.95.05", "Version: "+version)
	r.change("var/lib/dpkg/status", "Package: nvidia-fabricmanager-580\nStatus: install ok installed\nArchitecture: amd64\nVersion: "+version, "Package: nvidia-fabricmanager-580\nStatus: install ok installed\nArchitecture: amd64\nVersion: 580.95.05")
	r.module("6.8.0-88-generic", version)
	r.put("var/log/dpkg.log", "2026-01-02 02:14:05 upgrade libnvidia-compute-580-server:amd64 580.95.05-0ubuntu0.24.04.2 "+version+"-0ubuntu0.24.04.2\n")
}

// newKernel boots a kernel that the module was not built for.
func (r *recorded) newKernel() {
	r.unloaded()
	r.put("usr/lib/modules/6.8.0-90-generic/modules.dep", "")
	r.put("proc/sys/kernel/osrelease", "6.8.0-90-generic\n")
}

// noAdapters has the driver start no GPU.
func (r *recorded) noAdapters() {
	r.silent("GPU_NOT_FOUND", "driver 580.95.05 is loaded and sees no GPU")
}

// drop has the driver leave one GPU out.
func (r *recorded) drop(nth int) {
	r.change("sim.toml", fmt.Sprintf("\n[[gpu]]\nmodel = \"H100-80\"\naddress = %q\n", r.gpus()[nth]), "")
}

// package_ gives a package another status in dpkg's database.
func (r *recorded) package_(name, status string) {
	r.change("var/lib/dpkg/status", "Package: "+name+"\nStatus: install ok installed", "Package: "+name+"\nStatus: "+status)
}

// metal makes a machine without hypervisor of it, the link of whose second GPU has so many lanes; port and GPU can have 16.
func (r *recorded) metal(lanes string) {
	r.put("sys/class/dmi/id/sys_vendor", "Dell Inc.\n")
	r.put("sys/class/dmi/id/product_name", "PowerEdge XE9680\n")
	r.put("sys/class/dmi/id/bios_vendor", "Dell Inc.\n")
	r.remove("sys/class/dmi/id/product_version")
	r.put("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm\n")
	address, port := r.gpus()[1], "sys/devices/pci0000:17/0000:17:01.0"
	dev := "sys/bus/pci/devices/" + address
	for i := range r.all.Files {
		if rest, ok := strings.CutPrefix(r.all.Files[i].Name, dev+"/"); ok {
			r.all.Files[i].Name = port + "/" + address + "/" + strings.Replace(rest, "link=../../../", "link=../../../../", 1)
		}
	}
	r.put(dev+" link=../../../devices/pci0000:17/0000:17:01.0/"+address, "")
	r.put(port+"/max_link_width", "16\n")
	r.put(port+"/"+address+"/max_link_width", "16\n")
	r.put(port+"/"+address+"/current_link_width", lanes+"\n")
}

func codes(r Report) string {
	var all []string
	for _, c := range r.Causes {
		all = append(all, c.Code)
	}
	return strings.Join(all, " ")
}

// TestBroken examines each broken machine: its root causes, and nothing else.
func TestBroken(t *testing.T) {
	for _, c := range broken {
		t.Run(c.name, func(t *testing.T) {
			r := working(t)
			c.breaks(r)
			n := r.node()
			report := examine(t, n)
			if got := codes(report); got != c.want {
				t.Errorf("root causes %q, want %q", got, c.want)
				for _, cause := range report.Causes {
					t.Logf("%s %v explains %v", cause.Code, cause.Found, cause.Explains)
				}
			}
			for _, cause := range report.Causes {
				if len(cause.Commands) == 0 {
					t.Errorf("%s has nothing to type", cause.Code)
				}
			}
			if n.Touches() != 0 || len(n.Violations()) != 0 {
				t.Errorf("doctor touched the machine: %d touches, %v", n.Touches(), n.Violations())
			}
		})
	}
}

// stuckView is a machine on which a file's server is gone.
type stuckView struct {
	host.View
	asked, gone chan struct{}
}

func (s stuckView) Room(string) (host.Room, error) {
	s.asked <- struct{}{}
	<-s.gone
	return host.Room{}, nil
}

// TestStuck: what hangs is named as not checked, and all else is reported.
func TestStuck(t *testing.T) {
	r := working(t)
	r.fails("nvidia-persistenced")
	stuck, over := stuckView{r.node(), make(chan struct{}), make(chan struct{})}, make(chan time.Time)
	defer close(stuck.gone)
	go func() {
		<-stuck.asked
		<-stuck.asked
		close(over)
	}()
	report := examineUntil(t.Context(), stuck, spec.Spec{}, over)
	late := fmt.Sprint(report.Unread) // on a slow machine more than the two
	check.That(t, strings.Contains(late, "SYS-001, SYS-002"), "%v", late)
	check.That(t, codes(report) == "GPU-010" || strings.Contains(late, "GPU-010"), "%v", report.Causes)
}

// TestWorking: the machine that the broken ones are made of is not broken, and all of it can be read.
func TestWorking(t *testing.T) {
	n, _ := joined(t, nil)
	r := examine(t, n)
	if codes(r) != "" || len(r.Unread) != 0 || len(r.Notes) != 0 {
		t.Errorf("%v %v %v", r.Causes, r.Unread, r.Notes)
	}
}

// fullView is a machine with file systems that are full.
type fullView struct {
	host.View
	of map[string]host.Room
}

func (f fullView) Room(name string) (host.Room, error) {
	if r, ok := f.of[name]; ok {
		return r, nil
	}
	return f.View.Room(name)
}

// TestSealed: a root that is read-only by design is as full as its image, on Container-Optimized OS and Bottlerocket.
// Sources: https://cloud.google.com/container-optimized-os/docs/concepts/disks-and-filesystem;
// https://github.com/bottlerocket-os/bottlerocket, SECURITY_FEATURES.md (dm-verity).
func TestSealed(t *testing.T) {
	r := working(t)
	r.change("proc/self/mounts", "/dev/vda1 / ext4 rw,", "/dev/dm-0 / ext4 ro,")
	r.put("etc/fstab", "")
	report := examine(t, fullView{r.node(), map[string]host.Room{"/": {}}})
	if codes(report) != "" {
		t.Errorf("%v", report.Causes)
	}
}

// TestFull: a full disk is the root of a package that could not be installed; one file system is named once.
func TestFull(t *testing.T) {
	for _, c := range []struct {
		name string
		of   map[string]host.Room
		want string
	}{
		{"/var full", map[string]host.Room{"/var": {Bytes: 4096, Files: 1000}}, "SYS-001 [/var]"},
		{"all on one", map[string]host.Room{"/": {Bytes: 0, Files: 1000}, "/var": {Bytes: 0, Files: 1000}}, "SYS-001 [/]"},
		{"inodes", map[string]host.Room{"/": {Bytes: 1 << 40, Files: 0}}, "SYS-002 [/]"},
		{"/run", map[string]host.Room{"/run": {Bytes: 100, Files: 1000}}, "SYS-001 [/run]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := working(t)
			r.package_("nvidia-utils-580-server", "install ok half-configured")
			var got []string
			for _, cause := range examine(t, fullView{r.node(), c.of}).Causes {
				var objects []string
				for _, f := range cause.Found {
					objects = append(objects, f.Object)
				}
				got = append(got, fmt.Sprintf("%s %v", cause.Code, objects))
			}
			if s := strings.Join(got, ", "); s != c.want {
				t.Errorf("got %s, want %s", s, c.want)
			}
		})
	}
}
