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
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// A Holder is a process that has a device node of NVIDIA's open, and by that keeps the kernel
// modules from going.
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
	Driver       string // its name in /proc/devices; several may have one number
	Major, Minor uint32
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

// Daemon says whether it is one of the driver's own, which only serve others and are stopped and
// started with the module.
func (h Holder) Daemon() bool { return slices.Contains(Daemons(), h.Unit) }

// Daemons are the driver's own daemons, in the order to stop them in.
func Daemons() []string {
	return []string{"nvidia-dcgm.service", "dcgm.service", "nvidia-imex.service", "nvidia-fabricmanager.service", "nvidia-persistenced.service"}
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
	own := strconv.Itoa(os.Getpid()) // gpuadm asks the driver itself
	pids, err := v.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []Holder
	pods := podNames(v)
	for _, name := range pids {
		pid, err := strconv.Atoi(name)
		if err != nil || name == own {
			continue
		}
		files, devices, err := gpuFiles(v, pid, majors)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			continue
		}
		comm, _ := v.ReadFile(path.Join("/proc", name, "comm")) // gone with its process
		h := Holder{PID: pid, Command: strings.TrimSpace(string(comm)), Files: files, Devices: devices}
		group, _ := v.ReadFile(path.Join("/proc", name, "cgroup"))
		h.belong(string(group), pods)
		found = append(found, h)
	}
	return found, ctx.Err()
}

var (
	// podGroup matches a pod's uid in a cgroup's path, as kubelet writes it under both of its
	// cgroup drivers, and containerGroup a container's id. Source: pkg/kubelet/cm in
	// https://github.com/kubernetes/kubernetes.
	podGroup       = pattern.Of(`[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:/|$)`)
	containerGroup = pattern.Of(`([0-9a-f]{64})(?:\.scope)?(?:/|$)`)
	serviceGroup   = pattern.Of(`/([^/]+\.service)(?:/|$)`)
)

// belong fills in what a process's cgroups say: proc(5), /proc/PID/cgroup.
func (h *Holder) belong(cgroup string, pods map[string]string) {
	for line := range strings.Lines(cgroup) {
		line = strings.TrimSpace(line)
		if m := podGroup().FindStringSubmatch(line); m != nil && h.Pod == "" {
			uid := strings.ReplaceAll(m[1], "_", "-")
			if h.Pod = pods[uid]; h.Pod == "" {
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
	names, _ := v.ReadDir("/var/log/pods") // there is no kubelet
	pods := map[string]string{}
	for _, n := range names {
		if parts := strings.Split(n, "_"); len(parts) == 3 {
			pods[parts[2]] = parts[0] + "/" + parts[1]
		}
	}
	return pods
}

// capsDriver is the name of the driver of the devices below /dev/nvidia-caps:
// https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html.
const capsDriver = "nvidia-caps"

// gpuMajor is the major number of /dev/nvidiaN, of /dev/nvidiactl and of /dev/nvidia-modeset:
// NV_MAJOR_DEVICE_NUMBER in https://github.com/NVIDIA/open-gpu-kernel-modules, and
// Documentation/admin-guide/devices.txt of the kernel.
const gpuMajor = 195

// HasGPU says whether the holder has the device /dev/nvidiaN of a GPU open, by its minor number.
func (h Holder) HasGPU(minor int) bool {
	return minor >= 0 && slices.ContainsFunc(h.Devices, func(d OpenDevice) bool { return d.Major == gpuMajor && d.Minor == uint32(minor) })
}

// HasCapability says whether the holder has one of the devices below /dev/nvidia-caps open, by
// their minor numbers.
func (h Holder) HasCapability(minors []int) bool {
	return slices.ContainsFunc(h.Devices, func(d OpenDevice) bool {
		return d.Driver == capsDriver && slices.Contains(minors, int(d.Minor))
	})
}

// Capabilities are the minor numbers of the devices that give access to a GPU instance and to
// compute instances in it. None where the driver does not say them. Source: as of capsDriver, and
// /proc/driver/nvidia/capabilities in https://github.com/NVIDIA/nvidia-container-toolkit
// (internal/nvcaps).
func Capabilities(v host.View, gpuMinor, instance int, compute []int) (minors []int) {
	folder := fmt.Sprintf("%s/gpu%d/mig/gi%d", CapabilitiesFolder, gpuMinor, instance)
	of := []string{folder}
	for _, id := range compute {
		of = append(of, path.Join(folder, "ci"+strconv.Itoa(id)))
	}
	for _, instance := range of {
		if minor, err := strconv.Atoi(AccessOf(v, instance)["DeviceFileMinor"]); err == nil {
			minors = append(minors, minor)
		}
	}
	return minors
}

// How long a process has to end, and how often it is looked at.
const (
	endWithin = 30 * time.Second
	endPause  = 50 * time.Millisecond
)

// EndHolders asks processes to end and waits until they have no device of NVIDIA's open. A process
// that is not among the holders that can be seen is not asked: its number may be one of another PID
// namespace.
func EndHolders(ctx context.Context, h host.Host, holders []Holder) error {
	if len(holders) == 0 {
		return nil
	}
	majors, err := Majors(h)
	if err != nil {
		return err
	}
	open := func(p Holder) (bool, error) {
		files, _, err := gpuFiles(h, p.PID, majors)
		return len(files) > 0, err
	}
	began := h.Now()
	for _, p := range holders {
		is, err := open(p)
		switch {
		case err != nil:
			return err
		case !is && len(p.Devices) == 0:
			return &trouble.Error{
				What: fmt.Sprintf("cannot end %s: no process with this number has a GPU open here", p.Who()),
				Try:  []string{"run gpuadm in the host's PID namespace (hostPID in a pod), or end the process by hand"},
			}
		case !is:
			continue // it has ended
		}
		if err := h.Terminate(p.PID); err != nil {
			return err
		}
	}
	for _, p := range holders {
		for {
			is, err := open(p)
			if err != nil {
				return err
			}
			if !is {
				break
			}
			if h.Now().Sub(began) >= endWithin {
				return &trouble.Error{
					What: fmt.Sprintf("cannot end %s: it still has the GPU open, %s after SIGTERM", p.Who(), endWithin),
					Try:  []string{fmt.Sprintf("kill -KILL %d, if what it does may be lost, then run the same command again", p.PID)},
				}
			}
			if err := host.Pause(ctx, endPause); err != nil {
				return err
			}
		}
	}
	return nil
}
