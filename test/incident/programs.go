// SPDX-License-Identifier: Apache-2.0

package incident

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// looking are programs that change nothing.
var looking = []string{
	"aa-status", "cat", "chronyc", "containerd", "crictl-info", "date", "df", "du", "grep", "head", "hostname", "ip",
	"ipmitool", "journalctl", "ldconfig", "less", "ls", "lspci", "sort", "stat", "tail", "crio", "findmnt", "dmesg",
}

// looks reports whether a program that also changes things only looks here.
func looks(argv []string) bool {
	has := func(word string) bool { return slices.Contains(argv, word) }
	first := ""
	if len(argv) > 1 {
		first = argv[1]
	}
	switch path.Base(argv[0]) {
	case "kubectl":
		return has("get") || has("describe") || has("logs") || has("whoami")
	case "nvidia-smi":
		queries := strings.HasPrefix(first, "--query") || len(argv) == 1
		return has("-q") || has("--status") || has("-lgip") || queries
	case "systemctl":
		return first == "status" || first == "cat"
	case "timedatectl":
		return first != "set-ntp"
	case "apt-mark", "apt-get":
		return has("showhold") || has("--simulate")
	case "find":
		return !has("-delete")
	case "mokutil":
		return first == "--sb-state"
	case "nvidia-ctk":
		return !has("--set") && !has("generate")
	case "ldconfig", "sysctl":
		return has("-p") || has("-n")
	case "crictl":
		return has("info") || has("images")
	}

	return false
}

// programs are what the programs of other projects do, by name. Each does what its manual says.
var programs = map[string]func(y *Typist, words []string, in string) (out string, err error){
	"apt-get": (*Typist).aptGet,
	"chmod":   (*Typist).chmod,
	"chown":   func(*Typist, []string, string) (string, error) { return "", nil },
	"depmod":  func(y *Typist, words []string, _ string) (string, error) { return "", y.ubuntu("depmod", "-a") },
	"dkms": func(y *Typist, words []string, _ string) (string, error) {
		return "", y.ubuntu(append([]string{"dkms"}, words...)...)
	},
	"echo":            func(_ *Typist, words []string, _ string) (string, error) { return strings.Join(words, " ") + "\n", nil },
	"find":            (*Typist).find,
	"kubectl":         (*Typist).kubectl,
	"modprobe":        (*Typist).modprobe,
	"mokutil":         func(*Typist, []string, string) (string, error) { return "", nil },
	"mount":           (*Typist).mount,
	"nvidia-ctk":      (*Typist).nvidiaCTK,
	"nvidia-modprobe": (*Typist).nvidiaModprobe,
	"nvidia-smi":      (*Typist).nvidiaSMI,
	"poweroff":        func(y *Typist, _ []string, _ string) (string, error) { return "", y.boot(true) },
	"printf": func(_ *Typist, words []string, _ string) (string, error) {
		return strings.ReplaceAll(words[0], `\n`, "\n"), nil
	},
	"reboot":     func(y *Typist, _ []string, _ string) (string, error) { return "", y.boot(false) },
	"restorecon": (*Typist).restorecon,
	"rm":         (*Typist).remove,
	"sed":        (*Typist).sed,
	"setsebool": func(y *Typist, words []string, _ string) (string, error) {
		return "", y.put("/sys/fs/selinux/booleans/"+words[1], "1 1\n")
	},
	"swapoff": func(y *Typist, _ []string, _ string) (string, error) {
		return "", y.put("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n")
	},
	"sysctl":    (*Typist).sysctl,
	"systemctl": (*Typist).systemctl,
	"tee":       func(y *Typist, words []string, in string) (string, error) { return in, y.put(words[0], in) },
	"timedatectl": func(y *Typist, _ []string, _ string) (string, error) { // a server answers
		y.node.Advance(cmp.Or(-y.world.ahead, 400*24*time.Hour))
		y.world.ahead = 0
		y.world.now = y.node.Now().UTC()
		return "", nil
	},
	"update-initramfs": func(y *Typist, words []string, _ string) (string, error) { return "", nil },
}

// aptGet installs: headers, after which DKMS builds, and the fabric manager.
// Source: /etc/kernel/header_postinst.d/dkms of Debian's package dkms.
func (y *Typist) aptGet(words []string, _ string) (string, error) {
	if words[0] == "update" {
		return "", y.put("/var/lib/apt/lists/archive.ubuntu.com_ubuntu_dists_noble_InRelease", "Origin: Ubuntu\n")
	}
	if words[0] != "install" {
		return "", fmt.Errorf("apt-get %s is not known here", words[0])
	}
	for _, word := range words[1:] {
		name, version, _ := strings.Cut(word, "=")
		kernel, isHeaders := strings.CutPrefix(name, "linux-headers-")
		switch {
		case isHeaders:
			return "", errors.Join(y.put("/usr/src/"+name+"/Makefile", "VERSION = 6\n"),
				y.node.PutLink("/usr/lib/modules/"+kernel+"/build", "/usr/src/"+name),
				y.ubuntu("dkms", "autoinstall"))
		case strings.HasPrefix(name, "linux-modules-extra-"):
			folder := "/usr/lib/modules/" + strings.TrimPrefix(name, "linux-modules-extra-")
			more := "kernel/drivers/infiniband/core/ib_umad.ko:\nkernel/drivers/infiniband/hw/mlx5/mlx5_ib.ko:\n"
			return "", y.put(folder+"/modules.dep", y.text(folder+"/modules.dep")+more)
		case strings.HasPrefix(name, "nvidia-fabricmanager"):
			return "", y.installs(name, strings.TrimSuffix(version, "*")+"-0ubuntu0.24.04.1")
		}
	}

	return "", fmt.Errorf("apt-get: unable to locate %v", words[1:])
}

// installs has dpkg's database say that a package is installed in a version, and starts its service.
func (y *Typist) installs(name, version string) error {
	const status = "/var/lib/dpkg/status"
	var kept []string
	for one := range strings.SplitSeq(y.text(status), "\n\n") {
		if !strings.HasPrefix(one, "Package: "+name+"\n") && strings.TrimSpace(one) != "" {
			kept = append(kept, strings.TrimSpace(one))
		}
	}

	kept = append(kept, fmt.Sprintf("Package: %s\nStatus: install ok installed\nArchitecture: amd64\nVersion: %s", name, version))
	unit := "/usr/lib/systemd/system/nvidia-fabricmanager.service"
	err := errors.Join(y.put(status, strings.Join(kept, "\n\n")+"\n"))
	if !y.has(unit) {
		err = errors.Join(err, y.put(unit, "[Service]\nExecStart=/usr/bin/nv-fabricmanager\n[Install]\nWantedBy=multi-user.target\n"))
	}
	y.registers()
	return errors.Join(err, y.unit("nvidia-fabricmanager", host.UnitChange{
		File: "enable",
		Job:  "restart",
	}))
}

// registers is what a fabric manager that runs does: the GPUs join the fabric.
func (y *Typist) registers() {
	y.node.EachGPU(func(g *host.GPU) {
		if g.Fabric.State != "" {
			g.Fabric = host.Fabric{State: "completed"}
		}
	})
}

func (y *Typist) chmod(words []string, _ string) (string, error) {
	mode, err := strconv.ParseUint(words[0], 8, 32)
	if err != nil {
		return "", err
	}
	minor := uint64(255)
	if digits, is := strings.CutPrefix(words[1], "/dev/nvidia"); is && digits != "ctl" {
		minor, err = strconv.ParseUint(digits, 10, 32)
	}
	return "", errors.Join(err, y.node.PutDevice(words[1], 195, uint32(minor), fs.FileMode(mode)))
}

// find deletes the files without content in a folder: -type f -empty ! -name lock -delete.
func (y *Typist) find(words []string, _ string) (string, error) {
	folder := words[0]
	names, err := y.node.ReadDir(folder)
	for _, name := range names {
		info, _ := y.node.Stat(path.Join(folder, name))
		if name != "lock" && info.Mode.IsRegular() && info.Size == 0 {
			err = errors.Join(err, y.node.Drop(path.Join(folder, name)))
		}
	}

	return "", err
}

// kubectl has the rights of an administrator.
func (y *Typist) kubectl(words []string, _ string) (string, error) {
	if i := slices.Index(words, "-n"); i >= 0 {
		words = slices.Delete(slices.Clone(words), i, i+2)
	}
	words = slices.Clone(words)
	if i := slices.Index(words, "--selector=kubernetes.io/hostname=gpu-1"); i >= 0 {
		words[i] = nodeName
	}
	words = slices.DeleteFunc(words, func(word string) bool {
		return strings.HasPrefix(word, "--")
	})
	last := words[len(words)-1]
	spec := func(edit func(spec kubesim.Object)) {
		y.world.Server.EditNode(words[len(words)-1], func(n kubesim.Object) {
			spec, is := n["spec"].(kubesim.Object)
			if !is {
				spec = kubesim.Object{}
				n["spec"] = spec
			}
			edit(spec)
		})
	}

	switch words[0] {
	case "drain":
		if last != nodeName {
			return "", fmt.Errorf("kubectl: nodes %q not found", last)
		}
		spec(func(s kubesim.Object) { s["unschedulable"] = true })
	case "uncordon":
		spec(func(s kubesim.Object) { delete(s, "unschedulable") })
	case "taint":
		if strings.HasSuffix(last, "-") {
			return "", y.pluginStarts()
		}
		return "", y.pluginEnds()
	case "label": // words: label node NAME KEY=VALUE, or KEY- to take it off
		if !strings.HasSuffix(last, "-") {
			y.migManagerEnds(words[2])
		}
	case "wait": // for the pod to be deleted
	case "delete":
		if last == nodeName {
			return "", fmt.Errorf("kubectl delete node is not typed")
		}
		return "", errors.Join(y.pluginEnds(), y.pluginStarts())
	default:
		return "", fmt.Errorf("kubectl %s is not known here", words[0])
	}

	return "", nil
}

// migManagerEnds is NVIDIA's MIG manager, which makes the layout of a new label, and starts again what it
// has paused: reconfigure-mig.sh in https://github.com/NVIDIA/mig-parted.
func (y *Typist) migManagerEnds(node string) {
	y.world.Server.EditNode(node, func(n kubesim.Object) {
		labels, _ := n["metadata"].(kubesim.Object)["labels"].(kubesim.Object)
		labels["nvidia.com/mig.config.state"] = "success"
		for label := range labels {
			if strings.HasPrefix(label, "nvidia.com/gpu.deploy.") {
				labels[label] = "true"
			}
		}
	})
}

const pluginSocket = "/var/lib/kubelet/device-plugins/nvidia-gpu.sock"

func (y *Typist) pluginEnds() error {
	return errors.Join(y.node.Drop("/proc/4711"), y.node.Drop(pluginSocket))
}

// pluginStarts has the DaemonSet's pod run again: it registers the GPUs that the driver lists.
func (y *Typist) pluginStarts() error {
	driver, err := y.node.Driver(context.Background())
	if err != nil {
		return err
	}
	isLost := func(g host.GPU) bool { return g.Lost != "" }
	count := len(slices.DeleteFunc(driver.GPUs, isLost))
	y.world.offers = count
	y.world.Offers(count, count)
	y.node.Daemon(pluginSocket, func(string, []byte) ([]byte, error) { return nil, nil })
	for _, pod := range []string{"nvidia-device-plugin-daemonset-csjxw", "dra-driver-nvidia-gpu-kubelet-plugin-x2x4k"} {
		y.world.Server.DeletePod("kube-system", pod)
	}
	y.world.Server.AddPod(Pod("nvidia-device-plugin-daemonset-tm5vc"))
	return errors.Join(y.put("/proc/4711/comm", "nvidia-device-p\n"),
		y.put("/proc/4711/status", "NSpid:\t4711\t1\n"),
		y.put(pluginSocket, ""))
}

// modprobe loads a module, or unloads it. CUDA's module starts anew.
func (y *Typist) modprobe(words []string, _ string) (string, error) {
	if words[0] == "-a" {
		var errs []error
		for _, name := range words[1:] {
			errs = append(errs, y.put("/sys/module/"+name+"/refcnt", "0\n"))
		}
		return "", errors.Join(errs...)
	}

	if err := y.ubuntu(append([]string{"modprobe"}, words...)...); err != nil {
		return "", err
	}
	if slices.Contains(words, "nvidia-uvm") && words[0] != "-r" {
		y.node.CUDAAnswers(nil)
		return "", y.nodeDevice("/dev/nvidia-uvm", "nvidia-uvm", 0)
	}
	return "", nil
}

// mount knows the option remount with exec.
func (y *Typist) mount(words []string, _ string) (string, error) {
	if words[0] != "-o" || words[1] != "remount,exec" {
		return "", fmt.Errorf("mount %v is not known here", words)
	}
	lines := strings.SplitAfter(y.text("/proc/self/mounts"), "\n")
	for i, line := range lines {
		if fields := strings.Fields(line); len(fields) > 3 && fields[1] == words[2] {
			lines[i] = strings.Replace(line, ",noexec", "", 1)
		}
	}

	return "", y.put("/proc/self/mounts", strings.Join(lines, ""))
}

// nvidiaCTK edits the toolkit's file as `nvidia-ctk config --set KEY=VALUE --in-place` does, and writes a
// CDI spec.
func (y *Typist) nvidiaCTK(words []string, _ string) (string, error) {
	const config = "/etc/nvidia-container-runtime/config.toml"
	text := y.text(config)
	for i, word := range words {
		if output, is := strings.CutPrefix(word, "--output="); is {
			return "", y.writesCDI(output)
		}
		if word != "--set" {
			continue
		}
		key, value, _ := strings.Cut(words[i+1], "=")
		_, key, _ = strings.Cut(key, ".")
		lines := strings.SplitAfter(text, "\n")
		for j, line := range lines {
			if name, _, is := strings.Cut(line, "="); is && strings.TrimSpace(name) == key {
				if value != "true" && value != "false" {
					value = strconv.Quote(value)
				}
				lines[j] = key + " = " + value + "\n"
			}
		}

		text = strings.Join(lines, "")
	}

	return "", y.put(config, text)
}

// writesCDI writes the spec of what the driver has, as nvidia-ctk cdi generate does.
func (y *Typist) writesCDI(name string) error {
	driver, err := y.node.Driver(context.Background())
	if err != nil {
		return err
	}
	text := "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n"
	for _, g := range driver.GPUs {
		text += fmt.Sprintf("- name: %s\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia%d\n", g.UUID, g.Minor)
	}
	library := "/usr/lib/x86_64-linux-gnu/libcuda.so." + driver.Version
	text += fmt.Sprintf("containerEdits:\n  mounts:\n  - {hostPath: %[1]s, containerPath: %[1]s}\n", library)
	return y.put(name, text)
}

// nvidiaModprobe makes a device file: -c MINOR, of CUDA's memory with -u.
func (y *Typist) nvidiaModprobe(words []string, _ string) (string, error) {
	minor, err := strconv.ParseUint(words[len(words)-1], 10, 32)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("/dev/nvidia%d", minor)
	switch {
	case slices.Contains(words, "-u"):
		return "", errors.Join(y.put("/sys/module/nvidia_uvm/refcnt", "0\n"),
			y.nodeDevice("/dev/nvidia-uvm", "nvidia-uvm", 0))
	case minor == 255:
		name = "/dev/nvidiactl"
	}

	if y.has(name) { // it changes the mode of a device, and no other file
		return "", nil
	}
	return "", y.nodeDevice(name, "nvidia", uint32(minor))
}

// nvidiaSMI changes the GPUs after -i, or all.
func (y *Typist) nvidiaSMI(words []string, _ string) (string, error) {
	var of []string
	if i := slices.Index(words, "-i"); i >= 0 {
		of = strings.Split(words[i+1], ",")
	}
	each := func(change func(*host.GPU)) {
		y.node.EachGPU(func(g *host.GPU) {
			if of == nil || slices.Contains(of, g.Address) {
				change(g)
			}
		})
	}

	has := func(word string) bool { return slices.Contains(words, word) }
	switch {
	case has("--gpu-reset"):
		if of == nil {
			driver, _ := y.node.Driver(context.Background())
			for _, g := range driver.GPUs {
				of = append(of, g.Address)
			}
		}

		if err := y.node.ResetGPUs(context.Background(), of...); err != nil {
			return "", err
		}
	case has("--persistence-mode=0"), has("--persistence-mode=1"):
		each(func(g *host.GPU) { g.Persistent = has("--persistence-mode=1") })
	case has("-srs") && has("1"):
		y.node.CUDAAnswers(nil)
	case has("--compute-mode=DEFAULT"):
		each(func(g *host.GPU) { g.Prohibited = false })
		y.node.CUDAAnswers(nil)
	case has("--ecc-config=1"):
		each(func(g *host.GPU) { g.ECCWaits = "on" })
	case has("-mig") && has("0"):
		each(func(g *host.GPU) { g.Pending = false })
	default:
		return "", fmt.Errorf("nvidia-smi %v is not known here", words)
	}

	return "", nil
}

func (y *Typist) remove(words []string, _ string) (string, error) {
	for _, name := range words {
		if strings.HasPrefix(name, "-") {
			continue
		}
		if _, err := y.node.Lstat(name); err != nil {
			return "", err
		}
		if err := y.node.Drop(name); err != nil {
			return "", err
		}
	}
	return "", nil
}

// restorecon gives a file its label again, which changes its ctime.
func (y *Typist) restorecon(words []string, _ string) (string, error) {
	name := words[len(words)-1]
	y.node.Advance(1)
	return "", y.node.Put(name, y.text(name), 0o755)
}

// sed runs the real sed on a copy.
func (y *Typist) sed(words []string, _ string) (string, error) {
	name := words[len(words)-1]
	isInPlace := func(word string) bool { return word == "-i" }
	words = slices.DeleteFunc(slices.Clone(words[:len(words)-1]), isInPlace)
	cmd := exec.Command("sed", words...)
	cmd.Stdin = strings.NewReader(y.text(name))
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	if bytes.Equal(out, []byte(y.text(name))) {
		return "", fmt.Errorf("sed changes nothing in %s", name)
	}
	return "", y.put(name, string(out))
}

// sysctl reads the files of /etc/sysctl.d: --system.
func (y *Typist) sysctl([]string, string) (string, error) {
	names, _ := y.node.ReadDir("/etc/sysctl.d")
	for _, name := range names {
		for line := range strings.Lines(y.text("/etc/sysctl.d/" + name)) {
			key, value, is := strings.Cut(line, "=")
			if !is {
				continue
			}
			at := "/proc/sys/" + strings.ReplaceAll(strings.TrimSpace(key), ".", "/")
			if err := y.put(at, strings.TrimSpace(value)+"\n"); err != nil {
				return "", err
			}
		}
	}

	return "", nil
}

// systemctl knows the jobs and the changes of unit files that doctor prints.
func (y *Typist) systemctl(words []string, _ string) (string, error) {
	verb, units := words[0], words[1:]
	to := host.UnitChange{Job: verb}
	switch verb {
	case "enable", "disable", "unmask":
		to = host.UnitChange{File: verb}
		if units[0] == "--now" {
			to.Job = map[string]string{"enable": "start", "disable": "stop"}[verb]
			units = units[1:]
		}
	}

	for _, unit := range units {
		if err := y.unit(unit, to); err != nil {
			return "", err
		}
		if err := y.Starts(unit); err != nil {
			return "", err
		}
	}

	return "", nil
}

// Starts is what a daemon does once it has started, which a test calls after gpuadm has started one.
func (y *Typist) Starts(unit string) error {
	switch strings.TrimSuffix(unit, ".service") {
	case "systemd-resolved":
		return y.resolves()
	case "nvidia-fabricmanager":
		y.registers()
	case "nvidia-cdi-refresh":
		return y.writesCDI("/var/run/cdi/nvidia.yaml")
	}
	return nil
}

// resolves is what systemd-resolved does at its start.
func (y *Typist) resolves() error {
	return y.put("/run/systemd/resolve/stub-resolv.conf", "nameserver 127.0.0.53\n")
}

// boot reboots the machine, or switches it off and on: the kernel's log begins anew, GPUs whose power
// was off answer again, and the newest kernel runs, with the modules that may load.
func (y *Typist) boot(power bool) error {
	y.Rebooted = true
	y.node.Reboot()
	y.node.CUDAAnswers(nil)
	y.node.Install("journalctl", simhost.Program{
		Looks: func([]string) bool { return true },
		Run:   func(*files.Files, []string) ([]byte, error) { return []byte("Linux version 6.8.0\n"), nil },
	})
	var errs []error
	kernels, _ := y.node.ReadDir("/usr/lib/modules")
	running := strings.TrimSpace(y.text("/proc/sys/kernel/osrelease"))
	if len(kernels) > 0 && !slices.Contains(kernels, running) {
		errs = append(errs, y.put("/proc/sys/kernel/osrelease", slices.Max(kernels)+"\n"))
	}
	for _, address := range y.world.GPUs() {
		config := "/sys/bus/pci/devices/" + address + "/config"
		if power && strings.HasPrefix(y.text(config), "\xff\xff") {
			errs = append(errs, y.put(config, "\xde\x10\x30\x23"))
		}
	}

	errs = append(errs, y.bindsAgain(), y.resolves())
	return errors.Join(errs...)
}

// bindsAgain gives the GPUs to NVIDIA's driver where no other one may load.
func (y *Typist) bindsAgain() error {
	forbidden := ""
	names, _ := y.node.ReadDir("/etc/modprobe.d")
	for _, name := range names {
		forbidden += y.text("/etc/modprobe.d/" + name)
	}
	for _, address := range y.world.GPUs() {
		name := "/sys/bus/pci/devices/" + address + "/uevent"
		text := y.text(name)
		for _, other := range []string{"nouveau", "NovaCore"} {
			module := map[string]string{"nouveau": "nouveau", "NovaCore": "nova_core"}[other]
			isForbidden := strings.Contains(forbidden, "blacklist "+module)
			if isForbidden && strings.Contains(text, "DRIVER="+other+"\n") {
				text = strings.Replace(text, "DRIVER="+other+"\n", "DRIVER=nvidia\n", 1)
			}
		}

		if err := y.put(name, text); err != nil {
			return err
		}
	}

	return nil
}
