// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// counted is files that all were changed at one time, and counts what is read of them.
type counted struct {
	files
	changed time.Time
	reads   int
}

func (c *counted) Stat(name string) (host.Info, error) {
	i, err := c.files.Stat(name)
	i.Ctime = c.changed
	return i, err
}

func (c *counted) ReadAt(name string, p []byte, off int64) (int, error) {
	c.reads++
	return c.files.ReadAt(name, p, off)
}

// TestModuleCache: a module is read again once its file has changed, and one that cannot be read each time.
func TestModuleCache(t *testing.T) {
	const name, broken = "/lib/modules/6.1.0/updates/dkms/nvidia.ko.zst", "/lib/modules/6.1.0/broken.ko.zst"
	v := &counted{files: files{name: string(packed(t, ".zst", openModule("6.1.0"))), broken: "no module"}, changed: time.Unix(1, 0)}
	cache := &ModuleCache{}
	reads := func(name string, good bool) int {
		t.Helper()
		before := v.reads
		m, err := cache.Read(v, name)
		if (err == nil) != good || good && (m.Version != "580.95.05" || m.Path != name) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
		return v.reads - before
	}
	if first, second := reads(name, true), reads(name, true); first == 0 || second != 0 {
		t.Errorf("read %d times, then %d", first, second)
	}
	v.changed = time.Unix(1, 1)
	if again := reads(name, true); again == 0 {
		t.Error("not read again after its file has changed")
	}
	v.files[name] = string(packed(t, ".zst", append(openModule("6.1.0"), "and more that packs into a few bytes"...)))
	if again := reads(name, true); again == 0 {
		t.Error("not read again after its size has changed")
	}
	if first, second := reads(broken, false), reads(broken, false); first == 0 || second == 0 {
		t.Error("what is broken is remembered")
	}
	delete(v.files, name)
	reads(name, false)
	cache = nil
	v.files[name] = string(packed(t, ".zst", openModule("6.1.0")))
	if first, second := reads(name, true), reads(name, true); first == 0 || second == 0 {
		t.Error("no cache remembers")
	}
}

// TestCompilerOfKernel: a kernel's configuration is read as far as needed, and whole where its beginning does not name the compiler.
func TestCompilerOfKernel(t *testing.T) {
	const config, line = "/lib/modules/6.1.0/build/.config", "\nCONFIG_CC_VERSION_TEXT=\"gcc-12 (Debian 12.2.0-14) 12.2.0\"\n"
	long := strings.Repeat("CONFIG_X=y\n", 1000)
	for what, c := range map[string]struct {
		text  string
		whole bool
	}{
		"first, of a long one": {"#" + line + long, false}, "last, of a long one": {long + line, true}, "of a short one": {"#" + line, true},
	} {
		v := &read{files: files{config: c.text}}
		l := &look{v: v}
		if got := l.compiler("/lib/modules/6.1.0", "6.1.0"); got != "gcc-12 (Debian 12.2.0-14) 12.2.0" || l.err != nil {
			t.Errorf("%s: %q, %v", what, got, l.err)
		}
		if !c.whole && v.whole {
			t.Errorf("%s: all of it was read", what)
		}
	}
}

// read notes whether a file was read whole.
type read struct {
	files
	whole bool
}

func (r *read) ReadFile(name string) ([]byte, error) {
	r.whole = true
	return r.files.ReadFile(name)
}

func (r *read) ReadAt(name string, p []byte, off int64) (int, error) {
	return r.files.ReadAt(name, p, off)
}

// TestPCILinks finds functions as the kernel has them: in the bus's folder there are links. Source: pci_bus_add_device and
// bus_add_device in drivers/base/bus.c of the kernel's tree, which makes "devices/ADDRESS" a link to the device's own folder.
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
	v, err := host.Open(root)
	must.OK(t, err)
	l := &look{v: v}
	found := l.pci()
	if l.err != nil || len(found) != 2 || found[1].Address != "0000:2a:00.0" || found[1].Driver != "nvidia" || found[1].Device != "2330" {
		t.Errorf("%+v, %v", found, l.err)
	}
}
