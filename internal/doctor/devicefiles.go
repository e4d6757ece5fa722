// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/devices"
	"github.com/gpuadm/gpuadm/internal/host"
)

// noDeviceFile checks only machines that have device files of the driver: before a program opens a
// GPU there are none.
func noDeviceFile(m *Machine) (found []Finding) {
	names, err := m.View.ReadDir("/dev")
	if err != nil || !m.loaded() || !m.ownDriver() {
		return nil
	}
	isNvidia := func(name string) bool { return strings.HasPrefix(name, "nvidia") }
	if !slices.ContainsFunc(names, isNvidia) {
		return nil
	}

	asked := m.askedAccess()
	if asked != nil && !asked.isForAll() {
		found = append(found, Finding{
			Object: driverParams,
			What:   "only root and the group of the device files may open a GPU, as the module's options ask: pods of other users cannot (" + asked.String() + ")",
			Note:   true,
		})
	}

	majors := m.majors()
	for name, minor := range m.deviceFiles() {
		found = append(found, m.checkDeviceFile(name, minor, majors, asked)...)
	}
	return found
}

// deviceFiles returns the minor numbers of the driver's device files, by path.
func (m *Machine) deviceFiles() map[string]int {
	files := map[string]int{"/dev/nvidiactl": 255} // the control device: nvidia-modprobe(1)
	gpus, _ := m.NVML()
	for _, gpu := range gpus {
		if gpu.Minor >= 0 && gpu.Lost == "" {
			files[fmt.Sprintf("/dev/nvidia%d", gpu.Minor)] = gpu.Minor
		}
	}

	return files
}

// checkDeviceFile returns the first fault of a device file. It leaves out what is not known: the
// major numbers, and the access that the module asks for.
func (m *Machine) checkDeviceFile(name string, minor int, majors []uint32, asked *access) []Finding {
	create := fmt.Sprintf("sudo nvidia-modprobe -c %d", minor)
	file, err := m.View.Stat(name)
	if err != nil {
		return []Finding{{
			Object:  name,
			What:    name + " is not there",
			Command: create,
		}}
	}

	if file.Mode&fs.ModeCharDevice == 0 {
		return []Finding{{
			Object:  name,
			What:    name + " is not a device",
			Command: "sudo rm -r " + name + " && " + create,
		}}
	}

	numbersKnown := file.Device != host.Device{} && len(majors) > 0
	isDriver := slices.Contains(majors, file.Device.Major) && int64(file.Device.Minor) == int64(minor)
	switch {
	case numbersKnown && !isDriver:
		number := fmt.Sprintf("%d:%d", file.Device.Major, file.Device.Minor)
		return []Finding{{
			Object:  name,
			What:    fmt.Sprintf("%s has the number %s, and the driver's device is %d:%d", name, number, majors[0], minor),
			Command: "sudo rm " + name + " && " + create,
		}}
	case asked != nil && accessOf(file) != *asked:
		return []Finding{{
			Object: name,
			What:   fmt.Sprintf("%s has %v, and the driver asks for %v", name, accessOf(file), asked),
			Command: fmt.Sprintf(
				"sudo chown %d:%d %s && sudo chmod %04o %s",
				asked.uid, asked.gid, name, asked.mode, name,
			),
		}}
	}

	return nil
}

// majors returns the major numbers of the devices of the GPUs and of the control device. The driver
// calls it nvidia-frontend before 550.40. Sources: nv.c of
// https://github.com/NVIDIA/open-gpu-kernel-modules;
// https://github.com/NVIDIA/nvidia-container-toolkit/issues/324.
func (m *Machine) majors() (numbers []uint32) {
	driverNames := []string{"nvidia", "nvidia-frontend", "nvidiactl", "nvidia-modeset"}
	all, _ := devices.Majors(m.View) // what cannot be read says nothing
	for number, name := range all {
		if slices.Contains(driverNames, name) {
			numbers = append(numbers, number)
		}
	}

	return numbers
}

// access is the mode and the owner of the driver's device files.
type access struct {
	mode     fs.FileMode
	uid, gid int
}

func (a access) String() string {
	return fmt.Sprintf("mode %04o and owner %d:%d", uint32(a.mode), a.uid, a.gid)
}

// isForAll reports whether every user may read and write the files.
func (a access) isForAll() bool { return a.mode&0o006 == 0o006 }

func accessOf(file host.Info) access {
	return access{mode: file.Mode.Perm(), uid: file.UID, gid: file.GID}
}

// driverParams lists the options of the loaded module nvidia: NVreg_DeviceFileMode and others, in
// decimal digits.
const driverParams = "/proc/driver/nvidia/params"

// askedAccess returns the access that the module asks for; nil where an operator makes the files,
// or the module does not say. Sources: nv-procfs.c and nv-reg.h in
// https://github.com/NVIDIA/open-gpu-kernel-modules; nvidia-modprobe-utils.c in
// https://github.com/NVIDIA/nvidia-modprobe.
func (m *Machine) askedAccess() *access {
	text, _ := m.text(driverParams)
	params := map[string]int{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if n, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
			params[name] = n
		}
	}

	if params["ModifyDeviceFiles"] != 1 || params["DeviceFileMode"] == 0 {
		return nil
	}

	return &access{
		mode: fs.FileMode(params["DeviceFileMode"]),
		uid:  params["DeviceFileUID"],
		gid:  params["DeviceFileGID"],
	}
}

func noUVMFile(m *Machine) []Finding {
	const file = "/dev/nvidia-uvm"
	if !m.has("/sys/module/nvidia_uvm") {
		return noUVMLoaded(m)
	}
	if !m.ownDriver() || !m.has("/dev/nvidiactl") || m.has(file) {
		return nil
	}
	return []Finding{{What: "the module nvidia-uvm is loaded, and " + file + " is not there"}}
}

func noUVM(m *Machine) []Finding {
	kernel, ok := m.running()
	if !ok || kernel.Nvidia == nil || !m.loaded() || !m.ownDriver() || m.has("/sys/module/nvidia_uvm") {
		return nil
	}
	isUVM := func(file string) bool { return strings.Contains(path.Base(file), "-uvm.ko") }
	if slices.ContainsFunc(kernel.Files, isUVM) {
		return nil
	}
	return []Finding{{What: "kernel " + kernel.Kernel + " has " + kernel.Nvidia.Path + ", and no nvidia-uvm"}}
}
