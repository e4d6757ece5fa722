// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	hostfiles "github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/recall"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/kmodule"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// unpacks counts how often a module's file is read.
type unpacks struct {
	host.View
	reads *int
}

func (u unpacks) ReadAt(name string, p []byte, off int64) (int, error) {
	if strings.HasSuffix(name, ".ko.zst") {
		*u.reads++
	}
	return u.View.ReadAt(name, p, off)
}

// TestModuleRecord: what an apply has unpacked, later runs of the same boot do not unpack again,
// and their facts are the same; unless the file has changed, the record is another user's or
// damaged.
func TestModuleRecord(t *testing.T) {
	const file = "/lib/modules/6.1.0/updates/dkms/nvidia.ko.zst"
	boot := func() *simhost.Node {
		n, err := simhost.New([]byte("-- lib/modules/6.1.0/modules.dep --\nupdates/dkms/nvidia.ko.zst:\n-- run/lock --\n-- etc/os-release --\nID=debian\n"))
		must.OK(t, err)
		put(t, n, file, kmodule.Packed(t, ".zst", kmodule.Open("6.1.0")))
		return n
	}

	gather := func(n *simhost.Node, keep bool) (nvidia *modinfo.Module, reads int) {
		t.Helper()
		var cache Cache
		f, err := cache.Gather(t.Context(), unpacks{n, &reads}, Needs{Modules: true})
		must.That(t, err == nil && len(f.Modules.Kernels) == 1 && f.Modules.Kernels[0].Nvidia != nil, "%+v, %v", f.Modules, err)
		if keep {
			cache.Keep(n)
		}
		return f.Modules.Kernels[0].Nvidia, reads
	}

	n := boot()
	first, reads := gather(n, false)
	_, err := n.Stat(recall.Record)
	check.That(t, err != nil && reads != 0, "facts alone wrote a record, or the module was not read: %d reads", reads)
	gather(n, true)
	touches := n.Touches()
	again, reads := gather(n, true)
	check.That(t, reads == 0 && n.Touches() == touches, "the next run has read the module %d times, and made %d touches", reads, n.Touches()-touches)
	a, b := asJSON(t, first), asJSON(t, again)
	check.That(t, a == b, "a record says %s of %s", b, a)
	for what, change := range map[string]func(n *simhost.Node){
		"the module was built again": func(n *simhost.Node) { put(t, n, file, kmodule.Packed(t, ".zst", kmodule.Open("6.1.0"))) },
		"another user may write it":  func(n *simhost.Node) { attr(t, n, recall.Record, host.Attr{Mode: 0o666}) },
		"another user owns it":       func(n *simhost.Node) { attr(t, n, recall.Record, host.Attr{Mode: 0o644, UID: 1000}) },
		"it is torn":                 func(n *simhost.Node) { put(t, n, recall.Record, []byte(`[{"path":`)) },
		"it is not a list":           func(n *simhost.Node) { put(t, n, recall.Record, []byte(`{"path":"/x"}`)) },
		"it is gone":                 func(n *simhost.Node) { remove(t, n, recall.Record) },
		"it is too big":              func(n *simhost.Node) { put(t, n, recall.Record, make([]byte, 2<<20)) },
	} {
		n := boot()
		gather(n, true)
		change(n)
		found, reads := gather(n, true)
		check.That(t, reads != 0 && asJSON(t, found) == asJSON(t, first), "%s: read %d times, %+v", what, reads, found)
		_, reads = gather(n, true)
		check.That(t, reads == 0, "%s: the next apply has not healed the record", what)
	}
}

func asJSON(t *testing.T, m *modinfo.Module) string {
	t.Helper()
	text := must.Get(json.Marshal(m))(t)
	return string(text)
}

func put(t *testing.T, n *simhost.Node, name string, data []byte) {
	t.Helper()
	for i, part := range strings.Split(name, "/")[1:] {
		if dir := strings.Join(strings.Split(name, "/")[:i+1], "/"); dir != "" && part != "" {
			_ = n.Mkdir(dir, host.Attr{Mode: 0o755})
		}
	}

	must.OK(t, n.WriteFile(name, data, host.Attr{Mode: 0o644}))
}

func attr(t *testing.T, n *simhost.Node, name string, to host.Attr) {
	t.Helper()
	must.OK(t, n.SetAttr(name, to))
}

func remove(t *testing.T, n *simhost.Node, name string) {
	t.Helper()
	must.OK(t, n.Remove(name))
}

// TestCompilerOfKernel: a kernel's configuration names the compiler, at its beginning or its end.
func TestCompilerOfKernel(t *testing.T) {
	const config, line = "/lib/modules/6.1.0/build/.config", "\nCONFIG_CC_VERSION_TEXT=\"gcc-12 (Debian 12.2.0-14) 12.2.0\"\n"
	for _, text := range []string{"#" + line + "CONFIG_X=y\n", "CONFIG_X=y\n" + line} {
		g := &gathering{v: files{config: text}}
		got := g.compiler("/lib/modules/6.1.0", "6.1.0")
		check.That(t, got == "gcc-12 (Debian 12.2.0-14) 12.2.0" && g.err == nil, "%q, %v", got, g.err)
	}
}

// TestPCILinks finds functions as the kernel has them: in the bus's folder there are links. Source:
// pci_bus_add_device and bus_add_device in drivers/base/bus.c of the kernel's tree, which makes
// "devices/ADDRESS" a link to the device's own folder.
func TestPCILinks(t *testing.T) {
	root := t.TempDir()
	for _, address := range []string{"0000:18:00.0", "0000:2a:00.0"} {
		device := filepath.Join(root, "sys/devices/pci0000:17/0000:17:01.0", address)
		bus := filepath.Join(root, "sys/bus/pci/devices")
		for _, dir := range []string{device, bus} {
			must.OK(t, os.MkdirAll(dir, 0o755))
		}
		event := "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1\nPCI_SLOT_NAME=" + address + "\n"
		must.OK(t, os.WriteFile(filepath.Join(device, "uevent"), []byte(event), 0o644))
		must.OK(t, os.Symlink("../../../devices/pci0000:17/0000:17:01.0/"+address, filepath.Join(bus, address)))
	}

	v, err := local.Open(root)
	must.OK(t, err)
	g := &gathering{v: v}
	found := g.pci()
	check.That(t, g.err == nil && len(found) == 2 && found[1].Address == "0000:2a:00.0" && found[1].Driver == "nvidia" && found[1].Device == "2330", "%+v, %v", found, g.err)
}

// linked is files with links between whole paths.
type linked struct {
	files
	links map[string]string
}

func (v linked) Readlink(name string) (string, error) {
	if to, ok := v.links[name]; ok {
		return to, nil
	}
	return v.files.Readlink(name)
}

func (v linked) Resolve(name string) (string, error) {
	if to, ok := v.links[name]; ok {
		return path.Join(path.Dir(name), to), nil
	}
	return name, nil
}

func (v linked) Lstat(name string) (host.Info, error) {
	if _, ok := v.links[name]; ok {
		return host.Info{Mode: fs.ModeSymlink | 0o777}, nil
	}
	return v.files.Lstat(name)
}

func (v linked) ReadDir(name string) ([]string, error) {
	names, err := v.files.ReadDir(name)
	for link := range v.links {
		if path.Dir(link) == name {
			names, err = append(names, path.Base(link)), nil
		}
	}

	slices.Sort(names)
	return names, err
}

func (linked) Live() bool { return true }
func (linked) Runs() bool { return true }

func TestModules(t *testing.T) {
	v := linked{files{
		"/sys/module/nvidia/refcnt":                                           "5\n",
		"/sys/module/nvidia/version":                                          "570.172.08\n",
		"/sys/module/nvidia/holders/nvidia_uvm/refcnt":                        "1",
		"/sys/module/nvidia_uvm/refcnt":                                       "2\n",
		"/proc/driver/nvidia/version":                                         "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.172.08  Tue Jul\nGCC version: 12\n",
		"/proc/driver/nvidia/gpus/0000:17:00.0/information":                   "Model: NVIDIA H100",
		"/lib/modules/6.8.0-88/modules.dep":                                   "kernel/fs/ext4.ko: \nupdates/dkms/nvidia-uvm.ko.zst: updates/dkms/nvidia.ko.zst\nupdates/dkms/nvidia.ko.zst:\n",
		"/lib/modules/6.8.0-88/updates/dkms/nvidia.ko.zst":                    string(kmodule.Packed(t, ".zst", kmodule.Open("6.8.0-88"))),
		"/lib/modules/6.8.0-88/updates/dkms/nvidia-uvm.ko.zst":                "x",
		"/lib/modules/6.8.0-88/build/Makefile":                                "x",
		"/lib/modules/6.8.0-88/build/.config":                                 "CONFIG_X=y\nCONFIG_CC_VERSION_TEXT=\"gcc-13 (Ubuntu 13.3.0) 13.3.0\"\n",
		"/lib/modules/6.8.0-88/kernel/drivers/gpu/drm/nouveau/nouveau.ko.zst": "x",
		"/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin":                        "x",
		"/lib/modules/6.8.0-90/modules.dep":                                   "kernel/fs/ext4.ko:\n",
		"/lib/modules/6.8.0-90/extra/drivers/video/nvidia/nvidia.ko.xz":       "x",
		"/lib/modules/6.8.0-90/extra/nvidia-current-open.ko":                  "x",
		"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05":                 "x",
	}, map[string]string{"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "libnvidia-ml.so.580.95.05"}}
	g := &gathering{v: v}
	gpus := []PCI{{
		Address: "0000:17:00.0",
		Vendor:  "10de",
		Class:   "030200",
		Driver:  "nouveau",
	}}
	m := g.modules(Kernel{
		Running:   "6.8.0-88",
		Installed: []string{"6.8.0-90", "6.8.0-88"},
	}, gpus, "amd64")
	must.OK(t, g.err)
	check.That(t, m.Version == "570.172.08" && slices.Equal(m.Taken, []Taken{{
		Address: "0000:17:00.0",
		Module:  "nouveau",
	}}), "%+v", m)
	s := m.Mismatch()
	check.That(t, strings.Contains(s, "570.172.08 is loaded") && strings.Contains(s, "is of 580.95.05"), "%v", s)
	check.That(t, m.Reload("6.8.0-88") == "580.95.05", "%q", m.Reload("6.8.0-88"))
	k, _ := m.Of("6.8.0-88")
	check.That(t, k.Compiler == "gcc-13 (Ubuntu 13.3.0) 13.3.0" && slices.Equal(k.Missing, []string{"nvidia/580.95.05/gsp_tu10x.bin"}) && len(k.Files) == 2, "%+v", k)
	k, _ = m.Of("6.8.0-90")
	unlisted := []string{
		"/lib/modules/6.8.0-90/extra/drivers/video/nvidia/nvidia.ko.xz",
		"/lib/modules/6.8.0-90/extra/nvidia-current-open.ko",
	}
	check.That(t, slices.Equal(k.Unlisted, unlisted), "%+v", k)
}

func TestRole(t *testing.T) {
	for file, want := range map[string]string{
		"nvidia.ko": "nvidia", "updates/dkms/nvidia-current-open.ko": "nvidia", "nvidia-current-open-uvm.ko.xz": "nvidia-uvm", "nvidia-drm.ko.zst": "nvidia-drm",
		"nvidia-tesla-470-modeset.ko": "nvidia-modeset", "nvidia-peermem.ko.gz": "nvidia-peermem", "nvidia-fs.ko": "nvidia-fs",
		"nvidiafb.ko": "", "i2c-nvidia-gpu.ko": "", "nvidia.ko.sig": "", "nvidia-wmi-ec-backlight.ko": "", "nouveau.ko": "",
	} {
		check.Equal(t, role(file), want, "%s is", file)
	}
}

// FuzzModules gives hostile bytes to all that reads modules, firmware variables and DKMS's tree: none
// may panic.
func FuzzModules(f *testing.F) {
	der := authority(f, dkmsKeyName, 7)
	f.Add(kmodule.Open("6.1.0"), ".ko", "5.5/6.1.0/x86_64")
	f.Add(kmodule.Signed(kmodule.Object("version=1"), []byte("\x30\x03\x06\x01\x00")), ".zst", "../../x")
	f.Add([]byte("\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x16\x00\x00\x00"), ".xz", "")
	f.Add(signatureList(der, der), ".gz", "a asymmetri x: 00: X509")
	f.Fuzz(func(t *testing.T, data []byte, ending, text string) {
		keyNames(text)
		chosen(text)
		role(text)
		v := linked{files{
			"/lib/modules/6.1.0/x.ko" + ending: string(data), "/lib/modules/6.1.0/modules.dep": text + "\nnvidia.ko.xz:\n", "/lib/modules/6.1.0/nvidia.ko.xz": string(data),
			"/var/lib/dkms/nvidia/5.5/6.1.0/x86_64/module/x": "", secureBoot: data, "/sys/firmware/efi/efivars/MokListRT-x": data, "/proc/keys": text,
			"/etc/dkms/framework.conf": text, "/var/lib/dkms/mok.pub": data, "/sys/module/nvidia/refcnt": text,
		}, map[string]string{"/var/lib/dkms/nvidia/kernel-6.1.0-x86_64": text}}
		(&gathering{v: v}).modules(Kernel{Installed: []string{"6.1.0"}}, nil, "amd64")
	})
}

// asks counts how often a program is run, which then says a version; "" fails.
type asks struct {
	host.View
	says  *string
	times *int
}

func (a asks) Ask(context.Context, ...string) ([]byte, error) {
	*a.times++
	if *a.says == "" {
		return nil, errors.New("it does not run")
	}
	return []byte("containerd github.com/containerd/containerd " + *a.says + " 1\n"), nil
}

// TestUnpackagedRPM: a driver that is loaded and that rpm knows no package of has another owner;
// rpm is asked once a boot. A database that does not answer says nothing.
func TestUnpackagedRPM(t *testing.T) {
	const machine = "-- sys/module/nvidia/version --\n580.95.05\n-- usr/bin/rpm mode=0755 --\n-- usr/lib64/libnvidia-ml.so.580.95.05 --\nELF\n" +
		"-- usr/lib64/libnvidia-ml.so.1 link=libnvidia-ml.so.580.95.05 --\n-- run/lock --\n"
	for answers, owner := range map[string]string{
		"yes libnvidia-ml": "", "yes xorg-x11-drv-nvidia-cuda-libs": OtherOwner, "yes nvidia-x11-drv-libs": OtherOwner,
		"yes nvidia-dc-driver580-libs": CIQDriver, "yes 1": OtherOwner, "1 1": "", "yes 2": "", "elsewhere": OtherOwner,
		"yes cuda-open-hwe": OtherOwner, "yes cuda": "AKS",
	} {
		lies := "usr/lib64/"
		if answers == "elsewhere" {
			lies = "opt/"
		}
		n := must.Get(simhost.New([]byte(strings.ReplaceAll(machine, "usr/lib64/", lies))))(t)
		asked := 0
		n.Install("rpm", simhost.Program{Looks: func([]string) bool { return true }, Run: func(_ *hostfiles.Files, argv []string) ([]byte, error) {
			asked++
			code := strings.Fields(answers)[min(1, len(argv[2])-len("/usr/bin/rpm"))]
			if len(code) > 1 {
				return []byte(code + "-3:580.95.05-1.x86_64\n"), nil
			}
			return nil, &host.CommandError{
				Argv:  argv,
				Code:  int(code[0] - '0'),
				Cause: errors.New("exit status " + code),
			}
		}})
		for range 2 {
			var c Cache
			g := c.begin(n)
			if owner == "AKS" {
				g.cloud.Managed = "aks"
			}
			got := ""
			if o := g.driverOwner(t.Context(), Modules{Libraries: g.libraries("amd64")}); o != nil {
				got = o.Name
			}
			check.Equal(t, got, owner, "%s: the owner", answers)
			c.Keep(n)
		}

		check.That(t, answers == "yes 2" || answers == "1 1" || asked == 2 || asked == 0 && answers == "elsewhere", "%s: rpm was asked %d times", answers, asked)
	}
}

// TestProgramRecord: an engine says its version once a boot, and again once its file has changed;
// an engine that said no version is asked again.
func TestProgramRecord(t *testing.T) {
	const file = "/usr/bin/containerd"
	n := must.Get(simhost.New([]byte("-- usr/bin/containerd --\nELF\n-- run/lock --\n")))(t)
	says, times := "", 0
	version := func() string {
		var c Cache
		g := c.begin(asks{n, &says, &times})
		first := g.version(t.Context(), file, program{ask: true})
		check.Equal(t, g.version(t.Context(), file, program{ask: true}), first, "asked twice:")
		c.Keep(n)
		return first
	}

	check.Equal(t, version(), "", "a program that fails")
	times, says = 0, "1.7.24"
	check.Equal(t, version()+version(), "1.7.241.7.24", "two runs")
	check.Equal(t, times, 1, "two runs have asked")
	put(t, n, file, []byte("ELF of another release"))
	says = "2.1.4"
	check.Equal(t, version(), "2.1.4", "an upgrade")
}
