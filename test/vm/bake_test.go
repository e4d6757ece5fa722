// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// baked is a node image: a disk, and the kernel and the initial file system that lie in its /boot.
type baked struct {
	image
	disk string
}

// labDir is where the image keeps what plays its GPUs and asks the questions.
const labDir = "usr/lib/gpuadm-lab"

// bake bakes a Debian with Debian's kernel, from a mirror with modules that were built once, by the
// script that ships, and makes a disk of it.
func bake(t *testing.T) (b baked) {
	t.Helper()
	lab.Have(t, lab.SetupKernel(t.Context(), "bookworm", func(line string) { t.Log(line) }))
	gpus := fakenvml.Build(t)
	deb, err := repos.Build(t.Context(), "debian12", repos.Recipe{NVML: gpus.Library})
	lab.Have(t, err)
	upper, err := os.MkdirTemp(filepath.Dir(deb), ".vm-") // there an overlay can be; /tmp may be one already
	must.OK(t, err)
	defer func() { _ = os.RemoveAll(upper) }()
	err = os.Chmod(upper, 0o755)
	if err == nil {
		err = lab.OnDisk(lab.Options{
			Dist:   "bookworm",
			Kernel: true,
		}, upper, func(root string) (err error) {
			b, err = node{t, root}.bake(deb, gpus)
			return err
		})
	}

	must.OK(t, err)
	return b
}

// node is the root folder that becomes the image.
type node struct {
	t    *testing.T
	root string
}

func (n node) path(name string) string { return filepath.Join(n.root, name) }

func (n node) put(name, text string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(n.path(name), []byte(text), mode)
}

// copy puts a file of this machine into the image.
func (n node) copy(from, to string, mode fs.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return n.put(to, string(data), mode)
}

func (n node) run(env []string, argv ...string) error {
	cmd := exec.CommandContext(n.t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	n.t.Logf("%s\n%s", strings.Join(argv, " "), out)
	if err != nil {
		return fmt.Errorf("cannot run %s: %w", argv[0], err)
	}
	return nil
}

func (n node) bake(deb string, gpus fakenvml.Parts) (b baked, err error) {
	kernels, err := os.ReadDir(n.path("usr/lib/modules"))
	if err != nil || len(kernels) != 1 {
		return b, fmt.Errorf("want one kernel: %v, %v", kernels, err)
	}
	if err := errors.Join(n.furnish(gpus), n.aptly(deb)); err != nil {
		return b, err
	}
	spec := filepath.Join(n.t.TempDir(), "node.toml")
	if err := os.WriteFile(spec, []byte(bakedSpec("")), 0o644); err != nil {
		return b, err
	}
	b.kernel = kernels[0].Name()
	if err := n.mirror(deb, b.kernel); err != nil {
		return b, err
	}
	gpuadm, err := filepath.Abs("../../bin/gpuadm")
	if err == nil {
		err = n.run([]string{"GPUADM=" + gpuadm}, "sh", "../../images/chroot/bake.sh", n.root, spec, "--gpu", "H100-80GB", "--gpu", "A100-80GB")
	}
	if err != nil {
		return b, err
	}
	dir := n.t.TempDir()
	b.kernelFile, b.initrd, b.disk = filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd"), filepath.Join(dir, "disk")
	return b, errors.Join(copyFile(n.path("boot/vmlinuz-"+b.kernel), b.kernelFile), copyFile(n.path("boot/initrd.img-"+b.kernel), b.initrd),
		n.run(nil, "mke2fs", "-q", "-t", "ext4", "-d", n.root, b.disk, "6G")) // as bake.sh does
}

// mirror has the disk itself, which has a compiler, write the mirror from the lab's repositories,
// which are there for that time only.
func (n node) mirror(deb, kernel string) error {
	if err := syscall.Mount(deb, n.path(lab.RepoDir), "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot mount the repositories: %w", err)
	}
	err := errors.Join(n.copy("../../bin/gpuadm", "root/gpuadm", 0o755), n.put("root/mirror.toml", bakedSpec(repos.Fingerprint(n.t, deb)), 0o644),
		n.run(nil, "openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "36500", "-subj", "/CN=site", "-keyout", n.path("root/site.key"), "-out", n.path("root/site.pem")))
	if err == nil {
		err = n.run(nil, "unshare", "-m", "sh", "-c", `mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"`, n.root,
			"/root/gpuadm", "mirror", "--for", "debian-12", "--modules", kernel, "--module-key", "/root/site.key", "--module-cert", "/root/site.pem",
			"--gpu", "H100-80GB", "--gpu", "A100-80GB", "-f", "/root/mirror.toml", "-o", "/srv/mirror")
	}

	return errors.Join(err, syscall.Unmount(n.path(lab.RepoDir), 0), n.run(nil, "sh", "-c", "rm -f $0/root/*", n.root),
		n.copy(n.path("srv/mirror/mirror.toml"), "etc/gpuadm/node.d/mirror.toml", 0o644))
}

// bakedSpec has packages, a module, daemons, partitions and an engine. Both kinds of GPU have the
// layout. With the key of the lab's repositories it is the mirror's.
func bakedSpec(fingerprint string) string {
	of := func(section, version, url string) string {
		if fingerprint == "" {
			return fmt.Sprintf("[%s]\nversion = %q\n%s", section, version, map[string]string{"driver": "build = \"shared\"\n"}[section])
		}
		return fmt.Sprintf("[%s]\nversion = %q\n[%[1]s.repo]\nurl = %[3]q\nkey = \"/etc/gpuadm/key.asc\"\nfingerprint = %[4]q\n",
			section, version, url, fingerprint)
	}
	return "format = 1\n" + of("driver", "580.65.06", repos.Mirror+"/"+repos.CUDA+"/debian12/x86_64") +
		of("toolkit", "1.18.0", repos.Mirror+"/"+repos.Toolkit+"/deb/amd64") +
		"[[mig.gpu]]\ndevices = \"all\"\nlayout = { \"1g.10gb\" = 7 }\n[runtime]\nset_as_default = true\n"
}

// aptly leaves the image's apt the lab's repositories alone, while they are mounted.
func (n node) aptly(deb string) error {
	return errors.Join(
		n.put("etc/apt/sources.list", "# the lab's repositories only\n", 0o644),
		n.copy(filepath.Join(deb, "key.asc"), "etc/gpuadm/key.asc", 0o644),
		os.Symlink(lab.RepoDir+"/"+string(repos.Good), n.path(repos.At)),
		os.MkdirAll(n.path(lab.RepoDir), 0o755),
	)
}

// cloudConfig leaves out what needs packages that the image does not have.
const cloudConfig = "#cloud-config\nlocale: false\nssh_genkeytypes: []\nssh_deletekeys: false\n"

// furnish puts into the image what plays the GPUs, a stand-in for kubelet, what cloud-init reads,
// and what answers the test.
func (n node) furnish(gpus fakenvml.Parts) error {
	err := errors.Join(
		n.copy(gpus.Tool, "usr/local/bin/fakenvml", 0o755),
		n.copy(gpus.NvidiaSMI, "usr/local/bin/nvidia-smi", 0o755),
		n.copy("testdata/baked/gpus", labDir+"/gpus", 0o755),
		n.copy("testdata/baked/report", labDir+"/report", 0o755),
		n.copy("testdata/baked/reboots.conf", "etc/systemd/system/gpuadm.service.d/reboots.conf", 0o644),
		n.put("var/lib/cloud/seed/nocloud/meta-data", "instance-id: baked\n", 0o644),
		n.put("var/lib/cloud/seed/nocloud/user-data", cloudConfig, 0o644),
	)
	for unit, target := range map[string]string{"gpus.service": "sysinit.target", "report.service": "multi-user.target", "kubelet.service": "multi-user.target"} {
		wants := n.path("etc/systemd/system/" + target + ".wants")
		err = errors.Join(err, n.copy("testdata/baked/"+unit, "etc/systemd/system/"+unit, 0o644), os.MkdirAll(wants, 0o755),
			os.Symlink("/etc/systemd/system/"+unit, filepath.Join(wants, unit)))
	}

	for _, kind := range []string{"H100", "A100"} {
		named := kind
		if kind == "H100" {
			named = ""
		}
		devices, perr := lab.PCI(named, 8)
		err = errors.Join(err, perr)
		for name, text := range devices {
			if strings.HasSuffix(name, "/uevent") && strings.Contains(text, "PCI_ID=10DE:") { // the module nvidia has taken it
				text = "DRIVER=nvidia\n" + text
			}
			err = errors.Join(err, n.put(labDir+"/"+kind+"/sys/"+name, text, 0o444))
		}
	}

	return err
}

// TestVMBaked is a node's first day on a baked image: its own kernel, its own systemd, a driver's
// modules that the kernel loads, GPUs that are not there. The power is cut in the middle of the
// first boot's run, the boot after that finishes the run and needs a reboot, the unit makes it, and
// the node is ready. Later, with GPUs that no reboot helps, the reboots come to an end.
func TestVMBaked(t *testing.T) {
	asked(t)
	haveEmulator(t)
	p := newPC(t, bake(t))
	firstBoot(t, p)
	becomesReady(t, p)
	rebootsInVain(t, p)
}

// atWork is the line of gpuadm that comes before the GPUs change.
const atWork = "Stopped nvidia-persistenced.service"

// firstBoot cuts the power while the first boot's run changes the GPUs' MIG mode.
func firstBoot(t *testing.T, p *pc) {
	t.Helper()
	p.on("lab.gpus=A100 lab.keeps lab.unreset lab.latency=2000")
	p.says(atWork)
	p.cut()
}

// becomesReady: the run that was cut is finished first, by way of a reboot.
func becomesReady(t *testing.T, p *pc) {
	t.Helper()
	p.on("lab.gpus=A100 lab.keeps lab.unreset")
	is := p.answers()
	if boots := strings.Count(p.read("console"), "Linux version "); boots != 2 {
		t.Errorf("%d boots, want one that reboots and the next: %s", boots, p.last())
	}
	is.says("kernel", 0, p.of.kernel+"\n")
	is.says("init", 0, "/lib/systemd/systemd\n")
	is.says("modules", 0, "nvidia\n", "nvidia_uvm\n")
	is.says("module", 0, "/updates/gpuadm/nvidia.ko\n")
	is.says("cloud-init", 0, "status: done")
	for _, unit := range []string{"containerd", "gpuadm", "kubelet", "gpuadm-ready"} {
		is.says(unit, 0, "ActiveState=active\n")
	}
	check.None(t, is.has["failed"].text, "units have failed:")
	is.says("gate", 0, "")
	is.says("apply", 0, "Nothing to do.")
	is.says("status", 0, "converged")
	is.ordered()
	var gpus fakenvml.State
	must.OK(t, json.Unmarshal([]byte(is.has["gpus"].text), &gpus))
	for i, gpu := range gpus.GPUs {
		check.That(t, len(gpu.Instances) == 7, "GPU %d has %d partitions", i, len(gpu.Instances))
	}
	console := p.read("console")
	check.Says(t, console, "began: continues", "Rebooting: ")
}

// rebootsInVain: the GPUs lose their mode at each boot from now on.
func rebootsInVain(t *testing.T, p *pc) {
	t.Helper()
	p.on("lab.gpus=A100 lab.unreset")
	is := p.answers()
	if boots := strings.Count(p.read("console"), "Linux version "); boots != 3 {
		t.Errorf("%d boots, want two reboots: %s", boots, p.last())
	}
	is.says("gpuadm", 0, "ActiveState=failed\n")
	is.says("unit-status", 3, "has no effect after 2 reboots")
	is.says("gate", 1, "cannot let kubelet start")
	check.That(t, !strings.Contains(is.has["kubelet"].text, "ActiveState=active\n"), "kubelet runs: %s", is.has["kubelet"].text)
}

// ordered: cloud-init has written its files and containerd runs when gpuadm begins, and kubelet
// begins when gpuadm has ended. By the times of the units, and by systemd's own word on what waited
// for what.
func (m machine) ordered() {
	m.t.Helper()
	for _, unit := range []string{"cloud-config", "containerd"} {
		up, begins := m.time(unit, "ActiveEnterTimestampMonotonic"), m.time("gpuadm", "ExecMainStartTimestampMonotonic")
		check.That(m.t, up != 0 && begins >= up, "gpuadm began at %d µs, %s was up at %d µs", begins, unit, up)
	}

	for _, unit := range []string{"kubelet", "gpuadm-ready"} {
		ended, begins := m.time("gpuadm", "ExecMainExitTimestampMonotonic"), m.time(unit, "InactiveExitTimestampMonotonic")
		check.That(m.t, ended != 0 && begins >= ended, "%s began at %d µs, gpuadm ended at %d µs", unit, begins, ended)
	}

	m.says("chain", 0, "kubelet.service", "gpuadm.service")
	m.says("chain-gpuadm", 0, "gpuadm.service", "cloud-config.service")
}

// time reads a unit's time stamp, in microseconds since boot.
func (m machine) time(unit, property string) int {
	m.t.Helper()
	found := regexp.MustCompile(`(?m)^` + property + `=(\d+)$`).FindStringSubmatch(m.has[unit].text)
	if found == nil {
		m.t.Errorf("%s has no %s: %s", unit, property, m.has[unit].text)
		return 0
	}
	n, _ := strconv.Atoi(found[1])
	return n
}
