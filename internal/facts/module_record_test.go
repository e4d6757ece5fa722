// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	bin "encoding/binary"
	"encoding/json"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/check"
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

// TestModuleRecord: what an apply has unpacked, later runs of the same boot do not unpack again, and their facts are the same; unless
// the file has changed, the record is another user's or damaged, or it was of another file.
func TestModuleRecord(t *testing.T) {
	const file = "/lib/modules/6.1.0/updates/dkms/nvidia.ko.zst"
	boot := func() *simhost.Node {
		n, err := simhost.New([]byte("-- lib/modules/6.1.0/modules.dep --\nupdates/dkms/nvidia.ko.zst:\n-- run/lock --\n-- etc/os-release --\nID=debian\n"))
		must.OK(t, err)
		put(t, n, file, packed(t, ".zst", openModule("6.1.0")))
		return n
	}
	gather := func(n *simhost.Node, keep bool) (nvidia *ModuleFile, reads int) {
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
	_, err := n.Stat(moduleRecord)
	check.That(t, err != nil && reads != 0, "facts alone wrote a record, or the module was not read: %d reads", reads)
	gather(n, true)
	touches := n.Touches()
	again, reads := gather(n, true)
	check.That(t, reads == 0 && n.Touches() == touches, "the next run has read the module %d times, and made %d touches", reads, n.Touches()-touches)
	a, b := asJSON(t, first), asJSON(t, again)
	check.That(t, a == b, "a record says %s of %s", b, a)
	for what, change := range map[string]func(n *simhost.Node){
		"the module was built again": func(n *simhost.Node) { put(t, n, file, packed(t, ".zst", openModule("6.1.0"))) },
		"another user may write it":  func(n *simhost.Node) { attr(t, n, moduleRecord, host.Attr{Mode: 0o666}) },
		"another user owns it":       func(n *simhost.Node) { attr(t, n, moduleRecord, host.Attr{Mode: 0o644, UID: 1000}) },
		"it is torn":                 func(n *simhost.Node) { put(t, n, moduleRecord, []byte(`[{"path":`)) },
		"it is no list":              func(n *simhost.Node) { put(t, n, moduleRecord, []byte(`{"path":"/x"}`)) },
		"it is gone":                 func(n *simhost.Node) { remove(t, n, moduleRecord) },
		"it is too big":              func(n *simhost.Node) { put(t, n, moduleRecord, make([]byte, 2<<20)) },
		"it is of another file": func(n *simhost.Node) {
			text := must.Get(n.ReadFile(moduleRecord))(t)
			put(t, n, moduleRecord, []byte(strings.Replace(string(text), `"says":{"path":"`, `"says":{"path":"/other`, 1)))
		},
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

func asJSON(t *testing.T, m *ModuleFile) string {
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

// withDict is a stream of xz with a block that says that its dictionary has 2^12·2^(bits/2) bytes, or half as much again:
// https://tukaani.org/xz/xz-file-format.txt, 3.1 and 5.3.1.
func withDict(t *testing.T, stream []byte, bits byte) []byte {
	t.Helper()
	stream = bytes.Clone(stream)
	head := stream[12 : 12+4*(int(stream[12])+1)]
	at := bytes.Index(head, []byte{0x21, 1})
	must.That(t, at >= 0, "no LZMA2 in the header of the block")
	head[at+2] = bits
	bin.LittleEndian.PutUint32(head[len(head)-4:], crc32.ChecksumIEEE(head[:len(head)-4]))
	return stream
}

const (
	dict1MiB  = 16
	dict64MiB = 28
	dict2GiB  = 38
)

// TestPackedBombs: a small file that unpacks to a huge one, or asks for huge buffers wherever in it, is refused, and takes no more
// memory than a module does.
func TestPackedBombs(t *testing.T) {
	some := packed(t, ".xz", bytes.Repeat([]byte("nvidia "), 1000))
	zeros := make([]byte, 16<<20)
	for what, tt := range map[string]struct {
		ending string
		data   []byte
	}{
		"16 MiB of zeros in gzip":          {".gz", packed(t, ".gz", zeros)},
		"16 MiB of zeros in zstd":          {".zst", packed(t, ".zst", zeros)},
		"16 MiB of zeros in xz":            {".xz", packed(t, ".xz", zeros)},
		"a dictionary of 2 GiB":            {".xz", withDict(t, some, dict2GiB)},
		"one of 2 GiB in a later stream":   {".xz", append(withDict(t, some, dict1MiB), withDict(t, some, dict2GiB)...)},
		"100 streams with 64 MiB for each": {".xz", bytes.Repeat(withDict(t, some, dict64MiB), 100)},
	} {
		name := "/lib/modules/6.1.0/x.ko" + tt.ending
		alloc.Beside(t, unpackBuffers, unpackRatio, len(tt.data), func() {
			_, err := ReadModule(files{name: string(tt.data)}, name)
			check.That(t, err != nil && strings.HasPrefix(err.Error(), "cannot read module"), "%s: %v", what, err)
		})
		must.That(t, !t.Failed(), "%v", what)
	}
}

const (
	unpackBuffers = 2*maxWindow + 16<<20
	unpackRatio   = 8 * maxRatio // a buffer that grows is copied
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
	first, second := reads(name, true), reads(name, true)
	check.That(t, first != 0 && second == 0, "read %d times, then %d", first, second)
	v.changed = time.Unix(1, 1)
	check.That(t, reads(name, true) != 0, "not read again after its file has changed")
	v.files[name] = string(packed(t, ".zst", append(openModule("6.1.0"), "and more that packs into a few bytes"...)))
	check.That(t, reads(name, true) != 0, "not read again after its size has changed")
	first, second = reads(broken, false), reads(broken, false)
	check.That(t, first != 0 && second != 0, "what is broken is remembered")
	delete(v.files, name)
	reads(name, false)
	cache = nil
	v.files[name] = string(packed(t, ".zst", openModule("6.1.0")))
	first, second = reads(name, true), reads(name, true)
	check.That(t, first != 0 && second != 0, "no cache remembers")
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
		got := l.compiler("/lib/modules/6.1.0", "6.1.0")
		check.That(t, got == "gcc-12 (Debian 12.2.0-14) 12.2.0" && l.err == nil, "%s: %q, %v", what, got, l.err)
		check.That(t, c.whole || !v.whole, "%s: all of it was read", what)
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
	check.That(t, l.err == nil && len(found) == 2 && found[1].Address == "0000:2a:00.0" && found[1].Driver == "nvidia" && found[1].Device == "2330", "%+v, %v", found, l.err)
}
