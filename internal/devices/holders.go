// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Holder is a process that has a device node of NVIDIA's open, and so keeps the kernel modules
// loaded.
type Holder struct {
	PID       int
	Command   string   // its name, as ps -o comm shows it
	Files     []string // device nodes, a few of them named and the others counted
	Devices   []OpenDevice
	Unit      string // the systemd service it belongs to, "" if none
	Pod       string // NAMESPACE/NAME, or uid UID where kubelet has left no name; "" if it is in no pod
	Container string // the first 12 digits of the container's id
}

// An OpenDevice is a device of NVIDIA's that a process has open.
type OpenDevice struct {
	Driver string // its name in /proc/devices; several may have one number
	Major  uint32
	Minor  uint32
}

// String names the holder and what it has open.
func (h Holder) String() string {
	return h.Who() + " has " + strings.Join(h.Files, ", ") + " open"
}

// Who names the holder so that an operator can find it: process 4711 (python3) of pod ml/train-0,
// container 0123456789ab.
func (h Holder) Who() string {
	s := fmt.Sprintf("process %d", h.PID)
	if h.Command != "" {
		s += " (" + h.Command + ")"
	}
	switch {
	case h.Pod != "":
		s += " of pod " + h.Pod
	case h.Unit != "":
		s += " of " + h.Unit
	}

	if h.Container != "" {
		s += ", container " + h.Container + ","
	}

	return s
}

// Daemon reports whether it is one of the driver's own, which only serve others and are stopped and
// started with the module.
func (h Holder) Daemon() bool { return slices.Contains(Daemons(), h.Unit) }

// Daemons are the driver's own daemons, in the order to stop them in.
func Daemons() []string {
	return []string{
		"nvidia-dcgm.service", "dcgm.service",
		"nvidia-imex.service", "nvidia-fabricmanager.service",
		"nvidia-persistenced.service",
	}
}

// Holders lists the processes that hold a GPU, with the pod or service each belongs to.
func Holders(ctx context.Context, v host.View) ([]Holder, error) {
	if !v.Live() {
		return nil, nil
	}
	majors, err := Majors(v)
	if err != nil || len(majors) == 0 {
		return nil, err
	}
	names, err := v.ReadDir("/proc")
	if err != nil {
		return nil, err
	}

	var found []Holder
	pods := podNames(v)
	self := os.Getpid() // gpuadm asks the driver itself
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		files, devices, err := gpuFiles(v, pid, majors)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			continue
		}

		command, _ := v.ReadFile(path.Join("/proc", name, "comm")) // gone with its process
		cgroup, _ := v.ReadFile(path.Join("/proc", name, "cgroup"))
		h := Holder{
			PID:     pid,
			Command: strings.TrimSpace(string(command)),
			Files:   files,
			Devices: devices,
		}
		h.readCgroup(string(cgroup), pods)
		found = append(found, h)
	}

	return found, ctx.Err()
}

// gpuFiles names the devices of NVIDIA's that a process has open. Only their numbers say what they
// are: in a mount namespace of its own any user may call any file /dev/nvidia0.
func gpuFiles(v host.View, pid int, majors map[uint32]string) ([]string, []OpenDevice, error) {
	all, err := v.OpenDevices(pid)
	if err != nil {
		return nil, nil, err
	}

	var files []string
	var devices []OpenDevice
	for _, d := range all {
		driver, ok := majors[d.Major]
		if !ok {
			continue
		}
		name := d.Name
		isPlain := strings.HasPrefix(name, "/dev/nvidia") && path.Clean(name) == name && len(name) <= 64
		if !isPlain {
			name = fmt.Sprintf("device %d:%d of %s", d.Major, d.Minor, driver)
		}
		files = append(files, name)
		devices = append(devices, OpenDevice{driver, d.Major, d.Minor})
	}

	return trouble.Few(files, 4), devices, nil
}

var (
	// podGroup matches a pod's uid in a cgroup's path, as kubelet writes it under both of its
	// cgroup drivers, and containerGroup a container's id. Where kubelet uses systemd's driver and
	// containerd does not, a colon follows the pod.
	// Sources: pkg/kubelet/cm in https://github.com/kubernetes/kubernetes; its issue 106514.
	podGroup       = pattern.Of(`[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:[:/]|$)`)
	containerGroup = pattern.Of(`([0-9a-f]{64})(?:\.scope)?(?:/|$)`)
	serviceGroup   = pattern.Of(`/([^/]+\.service)(?:/|$)`)
)

// readCgroup fills in what a process's cgroups say: proc(5), /proc/PID/cgroup.
func (h *Holder) readCgroup(cgroup string, pods map[string]string) {
	for line := range strings.Lines(cgroup) {
		line = strings.TrimSpace(line)
		if m := podGroup().FindStringSubmatch(line); m != nil && h.Pod == "" {
			uid := strings.ReplaceAll(m[1], "_", "-")
			h.Pod = pods[uid]
			if h.Pod == "" {
				h.Pod = "uid " + uid
			}
		}

		if m := containerGroup().FindStringSubmatch(line); m != nil && h.Container == "" {
			h.Container = m[1][:12]
		}
		if m := serviceGroup().FindStringSubmatch(line); m != nil && h.Unit == "" {
			h.Unit = m[1]
		}
	}
}

// podNames returns pods by uid: kubelet names their log folders NAMESPACE_NAME_UID.
func podNames(v host.View) map[string]string {
	folders, _ := v.ReadDir("/var/log/pods") // missing where there is no kubelet
	pods := map[string]string{}
	for _, folder := range folders {
		parts := strings.Split(folder, "_")
		if len(parts) == 3 {
			pods[parts[2]] = parts[0] + "/" + parts[1]
		}
	}

	return pods
}

// gpuMajor is the major number of /dev/nvidiaN, of /dev/nvidiactl and of /dev/nvidia-modeset:
// NV_MAJOR_DEVICE_NUMBER in https://github.com/NVIDIA/open-gpu-kernel-modules, and
// Documentation/admin-guide/devices.txt of the kernel.
const gpuMajor = 195

// HasAnyGPU reports whether the holder has the device of a GPU open. The control device has the
// last number, and the mode setter the one before: nvidia-modprobe(1).
func (h Holder) HasAnyGPU() bool {
	const modeSetter = 254
	return slices.ContainsFunc(h.Devices, func(d OpenDevice) bool {
		return d.Major == gpuMajor && d.Minor < modeSetter
	})
}

// HasGPU reports whether the holder has the device /dev/nvidiaN of a GPU open, by its minor number.
func (h Holder) HasGPU(minor int) bool {
	return minor >= 0 && slices.ContainsFunc(h.Devices, func(d OpenDevice) bool {
		return d.Major == gpuMajor && d.Minor == uint32(minor)
	})
}

// HasCapability reports whether the holder has one of the devices below /dev/nvidia-caps open, by
// their minor numbers.
func (h Holder) HasCapability(minors []int) bool {
	return slices.ContainsFunc(h.Devices, func(d OpenDevice) bool {
		return d.Driver == capsDriver && slices.Contains(minors, int(d.Minor))
	})
}
