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

// noDeviceFile asks only on machines that have such files at all: where no program has opened a GPU
// yet there are none.
func noDeviceFile(m *Machine) (found []Finding) {
	names, err := m.View.ReadDir("/dev")
	if err != nil || !m.loaded() || !m.ownDriver() || !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "nvidia") }) {
		return nil
	}
	wanted := map[string]string{"/dev/nvidiactl": "nvidia-modprobe -c 255"} // minor 255 is the control device: nvidia-modprobe(1)
	gpus, _ := m.NVML()
	for _, g := range gpus {
		if g.Minor >= 0 && g.Lost == "" {
			wanted[fmt.Sprintf("/dev/nvidia%d", g.Minor)] = fmt.Sprintf("nvidia-modprobe -c %d", g.Minor)
		}
	}
	asks, majors := m.access(), m.majors()
	if asks != nil && asks.mode&6 != 6 {
		found = append(found, Finding{Object: driverParams, Note: true, What: "only root and the group of the device files may open a GPU, as the module's options ask: pods of other users cannot (" + asks.String() + ")"})
	}
	for name, command := range wanted {
		i, err := m.View.Stat(name)
		minor := strings.TrimPrefix(command, "nvidia-modprobe -c ")
		switch {
		case err != nil:
			found = append(found, Finding{Object: name, What: name + " is not there", Command: command})
		case i.Mode&fs.ModeCharDevice == 0:
			found = append(found, Finding{Object: name, What: name + " is not a device", Command: "rm -r " + name + " && " + command})
		case i.Device != host.Device{} && len(majors) > 0 && (!slices.Contains(majors, i.Device.Major) || minor != fmt.Sprint(i.Device.Minor)):
			found = append(found, Finding{
				Object: name, What: fmt.Sprintf("%s has the number %d:%d, and the driver's device is %d:%s", name, i.Device.Major, i.Device.Minor, majors[0], minor),
				Command: "sudo rm " + name + " && sudo " + command,
			})
		case asks != nil && accessOf(i) != *asks:
			found = append(found, Finding{
				Object: name, What: fmt.Sprintf("%s has %v, and the driver asks for %v", name, accessOf(i), asks),
				Command: fmt.Sprintf("sudo chown %d:%d %s && sudo chmod %04o %s", asks.uid, asks.gid, name, asks.mode, name),
			})
		}
	}
	return found
}

// majors are the major numbers of the GPUs' devices, and of the control device: nvidia-frontend
// before 550.40. Sources: nv.c of https://github.com/NVIDIA/open-gpu-kernel-modules;
// https://github.com/NVIDIA/nvidia-container-toolkit/issues/324.
func (m *Machine) majors() (numbers []uint32) {
	all, _ := devices.Majors(m.View) // what cannot be read says nothing
	for number, name := range all {
		if slices.Contains([]string{"nvidia", "nvidia-frontend", "nvidiactl", "nvidia-modeset"}, name) {
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

func accessOf(i host.Info) access { return access{i.Mode.Perm(), i.UID, i.GID} }

// driverParams has the options of the module nvidia that is loaded: NVreg_DeviceFileMode and
// others, in decimal digits.
const driverParams = "/proc/driver/nvidia/params"

// access is what the module asks for, nil where an operator makes the files or the module does not
// say.
// Sources: nv-procfs.c and nv-reg.h in https://github.com/NVIDIA/open-gpu-kernel-modules;
// nvidia-modprobe-utils.c in https://github.com/NVIDIA/nvidia-modprobe.
func (m *Machine) access() *access {
	text, _ := m.text(driverParams)
	is := map[string]int{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		if n, err := strconv.Atoi(strings.TrimSpace(value)); err == nil {
			is[key] = n
		}
	}
	if is["ModifyDeviceFiles"] != 1 || is["DeviceFileMode"] == 0 {
		return nil
	}
	return &access{fs.FileMode(is["DeviceFileMode"]), is["DeviceFileUID"], is["DeviceFileGID"]}
}

func noUVMFile(m *Machine) []Finding {
	if !m.ownDriver() || !m.has("/sys/module/nvidia_uvm") || !m.has("/dev/nvidiactl") || m.has("/dev/nvidia-uvm") {
		return nil
	}
	return []Finding{{What: "the module nvidia-uvm is loaded, and /dev/nvidia-uvm is not there"}}
}

func noUVM(m *Machine) []Finding {
	k, ok := m.running()
	if !ok || !m.loaded() || !m.ownDriver() || k.Nvidia == nil || m.has("/sys/module/nvidia_uvm") {
		return nil
	}
	if slices.ContainsFunc(k.Files, func(f string) bool { return strings.Contains(path.Base(f), "-uvm.ko") }) {
		return nil
	}
	return []Finding{{What: "kernel " + k.Kernel + " has " + k.Nvidia.Path + ", and no nvidia-uvm"}}
}
