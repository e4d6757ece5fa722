// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

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
	for l := range v.links {
		if path.Dir(l) == name {
			names, err = append(names, path.Base(l)), nil
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
		"/lib/modules/6.8.0-88/updates/dkms/nvidia.ko.zst":                    string(packed(t, ".zst", openModule("6.8.0-88"))),
		"/lib/modules/6.8.0-88/updates/dkms/nvidia-uvm.ko.zst":                "x",
		"/lib/modules/6.8.0-88/build/Makefile":                                "x",
		"/lib/modules/6.8.0-88/build/.config":                                 "CONFIG_X=y\nCONFIG_CC_VERSION_TEXT=\"gcc-13 (Ubuntu 13.3.0) 13.3.0\"\n",
		"/lib/modules/6.8.0-88/kernel/drivers/gpu/drm/nouveau/nouveau.ko.zst": "x",
		"/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin":                        "x",
		"/lib/modules/6.8.0-90/modules.dep":                                   "kernel/fs/ext4.ko:\n",
		"/lib/modules/6.8.0-90/extra/nvidia-current-open.ko":                  "x",
		"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05":                 "x",
	}, map[string]string{"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "libnvidia-ml.so.580.95.05"}}
	l := &look{v: v}
	gpus := []PCI{{Address: "0000:17:00.0", Vendor: "10de", Class: "030200", Driver: "nouveau"}}
	m := l.modules(Kernel{Running: "6.8.0-88", Installed: []string{"6.8.0-90", "6.8.0-88"}}, gpus, "amd64", &ModuleCache{})
	must.OK(t, l.err)
	check.That(t, m.Version == "570.172.08" && slices.Equal(m.Nouveau, []string{"0000:17:00.0"}), "%+v", m)
	s := m.Mismatch()
	check.That(t, strings.Contains(s, "570.172.08 is loaded") && strings.Contains(s, "is of 580.95.05"), "%v", s)
	if m.Reload("6.8.0-88") != "580.95.05" {
		t.Errorf("%q", m.Reload("6.8.0-88"))
	}
	k, _ := m.Of("6.8.0-88")
	check.That(t, k.Compiler == "gcc-13 (Ubuntu 13.3.0) 13.3.0" && slices.Equal(k.Missing, []string{"nvidia/580.95.05/gsp_tu10x.bin"}) && len(k.Files) == 2, "%+v", k)
	k, _ = m.Of("6.8.0-90")
	check.That(t, slices.Equal(k.Unlisted, []string{"/lib/modules/6.8.0-90/extra/nvidia-current-open.ko"}), "%+v", k)
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

// FuzzModules gives hostile bytes to all that reads modules, signatures, firmware variables and DKMS's tree: none may
// panic, and what cannot be read is said so.
func FuzzModules(f *testing.F) {
	der := authority(f, dkmsKeyName, 7)
	f.Add(openModule("6.1.0"), ".ko", "5.5/6.1.0/x86_64")
	f.Add(object([]byte("\x30\x03\x06\x01\x00"), "version=1"), ".zst", "../../x")
	f.Add([]byte("\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x16\x00\x00\x00"), ".xz", "")
	f.Add(signatureList(der, der), ".gz", "a asymmetri x: 00: X509")
	f.Fuzz(func(t *testing.T, data []byte, ending, text string) {
		m, err := parseModule(bytes.NewReader(data), int64(len(data)))
		if err == nil && len(m.Version)+len(m.Vermagic)+len(m.License) > len(data) {
			t.Error("it says more than it holds")
		}
		_, _ = signer(bytes.NewReader(data), int64(len(data)))
		_, _ = parseSignature(data)
		if n := len(efiKeys(data)); n > len(data)/28 {
			t.Errorf("%d keys in %d bytes", n, len(data))
		}
		keyNames(text)
		chosen(text)
		role(text)
		v := linked{files{
			"/lib/modules/6.1.0/x.ko" + ending: string(data), "/lib/modules/6.1.0/modules.dep": text + "\nnvidia.ko.xz:\n", "/lib/modules/6.1.0/nvidia.ko.xz": string(data),
			"/var/lib/dkms/nvidia/5.5/6.1.0/x86_64/module/x": "", secureBoot: data, "/sys/firmware/efi/efivars/MokListRT-x": data, "/proc/keys": text,
			"/etc/dkms/framework.conf": text, "/var/lib/dkms/mok.pub": data, "/sys/module/nvidia/refcnt": text,
		}, map[string]string{"/var/lib/dkms/nvidia/kernel-6.1.0-x86_64": text}}
		alloc.Beside(t, unpackBuffers, unpackRatio, len(data), func() {
			if _, err := ReadModule(v, "/lib/modules/6.1.0/x.ko"+ending); err != nil && !strings.HasPrefix(err.Error(), "cannot ") && !strings.Contains(err.Error(), "not exist") {
				t.Errorf("an error that does not say what cannot be done: %v", err)
			}
		})
		(&look{v: v}).modules(Kernel{Installed: []string{"6.1.0"}}, nil, "amd64", nil)
	})
}
