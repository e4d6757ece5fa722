// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// recorded is a recorded machine that a mutation breaks, before it is simulated.
type recorded struct {
	t   *testing.T
	all *txtar.Archive
}

// working is the recorded machine ubuntu24-h100 with a driver that works: testdata/driver.txtar says what that adds.
func working(t *testing.T) *recorded {
	t.Helper()
	r := &recorded{t, &txtar.Archive{}}
	var settings []byte
	for _, name := range []string{"../../test/hosts/ubuntu24-h100.txtar", "testdata/driver.txtar"} {
		part := must.Get(txtar.ParseFile(name))(t)
		for _, f := range part.Files {
			if f.Name == "sim.toml" {
				settings = slices.Concat(settings, []byte("\n"), f.Data)
			} else {
				r.all.Files = append(r.all.Files, f)
			}
		}
	}
	r.all.Files = append(r.all.Files, txtar.File{Name: "sim.toml", Data: settings})
	r.put("usr/lib/modules/6.8.0-88-generic/modules.dep", "updates/dkms/nvidia.ko:\nupdates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko\n")
	r.module("6.8.0-88-generic", "580.95.05")
	for i, address := range r.gpus() {
		r.put("sys/bus/pci/devices/"+address+"/config nonl", "\xde\x10\x30\x23\n")
		r.bind(address, "nvidia")
		r.put(fmt.Sprintf("dev/nvidia%d type=char", i), "")
		r.settings(fmt.Sprintf("\n[[gpu]]\nmodel = \"H100-80\"\naddress = %q\n", address))
	}
	var status strings.Builder
	for _, p := range []string{
		"libnvidia-compute-580-server 580.95.05-0ubuntu0.24.04.2", "nvidia-utils-580-server 580.95.05-0ubuntu0.24.04.2",
		"nvidia-dkms-580-server-open 580.95.05-0ubuntu0.24.04.2", "nvidia-compute-utils-580-server 580.95.05-0ubuntu0.24.04.2",
		"nvidia-fabricmanager-580 580.95.05-0ubuntu0.24.04.1", "nvidia-container-toolkit 1.18.0-1", "man-db 2.12.0-4build2", "dpkg 1.22.6ubuntu6.5",
	} {
		name, version, _ := strings.Cut(p, " ")
		fmt.Fprintf(&status, "Package: %s\nStatus: install ok installed\nArchitecture: amd64\nVersion: %s\n\n", name, version)
	}
	r.put("var/lib/dpkg/status", status.String())
	return r
}

// gpus are the addresses of the machine's GPUs, in order.
func (r *recorded) gpus() (all []string) {
	for _, f := range r.all.Files {
		if address, ok := strings.CutSuffix(strings.TrimPrefix(f.Name, "sys/bus/pci/devices/"), "/uevent"); ok && bytes.Contains(f.Data, []byte("PCI_CLASS=302")) {
			all = append(all, address)
		}
	}
	return all
}

// bind gives a GPU to a kernel driver; "" takes it away.
func (r *recorded) bind(address, driver string) {
	f := r.find("sys/bus/pci/devices/" + address + "/uevent")
	lines := slices.DeleteFunc(strings.SplitAfter(string(f.Data), "\n"), func(l string) bool { return strings.HasPrefix(l, "DRIVER=") })
	if driver != "" {
		lines = append(lines, "DRIVER="+driver+"\n")
	}
	f.Data = []byte(strings.Join(lines, ""))
}

// put writes a file with its markers in the place of the one with that path.
func (r *recorded) put(section, data string) {
	r.remove(strings.TrimSuffix(strings.Fields(section)[0], "/"))
	r.all.Files = append(r.all.Files, txtar.File{Name: section, Data: []byte(data)})
}

// remove removes a file, and all below a folder.
func (r *recorded) remove(name string) {
	kept := r.all.Files[:0]
	for _, f := range r.all.Files {
		path := strings.TrimSuffix(strings.Fields(f.Name)[0], "/")
		if path != name && !strings.HasPrefix(path, name+"/") {
			kept = append(kept, f)
		}
	}
	r.all.Files = kept
}

func (r *recorded) find(name string) *txtar.File {
	r.t.Helper()
	for i := range r.all.Files {
		if strings.Fields(r.all.Files[i].Name)[0] == name {
			return &r.all.Files[i]
		}
	}
	r.t.Fatalf("the recorded machine has no %s", name)
	return nil
}

// change replaces a text in a file; it must be there.
func (r *recorded) change(name, from, to string) {
	r.t.Helper()
	f := r.find(name)
	must.That(r.t, bytes.Contains(f.Data, []byte(from)), "%s of the recorded machine has no %q", name, from)
	f.Data = bytes.ReplaceAll(f.Data, []byte(from), []byte(to))
}

// settings adds to what the recording says beside the files.
func (r *recorded) settings(text string) {
	f := r.find("sim.toml")
	f.Data = slices.Concat(f.Data, []byte(text))
}

// says adds lines to the kernel's log.
func (r *recorded) says(lines ...string) {
	r.change("sim.toml", "major device number 509.\n", "major device number 509.\n"+strings.Join(lines, "\n")+"\n")
}

// gpu adds settings to a GPU.
func (r *recorded) gpu(nth int, settings string) {
	line := fmt.Sprintf("address = %q\n", r.gpus()[nth])
	r.change("sim.toml", line, line+settings+"\n")
}

// unloaded is the machine before the module nvidia was loaded.
func (r *recorded) unloaded() {
	r.remove("sys/module/nvidia")
	r.remove("sys/module/nvidia_uvm")
	r.remove("proc/driver/nvidia")
	r.remove("dev/nvidiactl")
	r.remove("dev/nvidia-uvm")
	for i, address := range r.gpus() {
		r.bind(address, "")
		r.remove(fmt.Sprintf("dev/nvidia%d", i))
	}
	r.silent("DRIVER_NOT_LOADED", "the kernel module nvidia is not loaded")
	for _, unit := range []string{"nvidia-persistenced", "nvidia-fabricmanager"} {
		r.fails(unit)
	}
}

// silent has NVML not answer: its name of why, and the words.
func (r *recorded) silent(code, why string) {
	r.change("sim.toml", "[driver]\n", fmt.Sprintf("[driver]\ncode = %q\nwhy = %q\n", code, why))
}

// fails has a unit fail.
func (r *recorded) fails(unit string) {
	from := "name = \"" + unit + ".service\"\nenabled = \"enabled\"\nactive = "
	r.change("sim.toml", from+`"active"`, from+`"failed"`)
}

// loops has a daemon end after each start: systemctl status says "activating (auto-restart)" of kubelet then, https://pastebin.com/9pgtDMNu and
// https://github.com/kubernetes/kubernetes/issues/83936.
func (r *recorded) loops(unit string) {
	from := "name = \"" + unit + ".service\"\nenabled = \"enabled\"\nactive = "
	r.change("sim.toml", from+`"active"`, from+"\"activating\"\nsub = \"auto-restart\"")
}

// module puts an open module nvidia into a kernel's folder: what modinfo prints of one, in an ELF file.
func (r *recorded) module(kernel, version string) {
	info := strings.Join([]string{"license=Dual MIT/GPL", "version=" + version, "firmware=nvidia/" + version + "/gsp_ga10x.bin", "vermagic=" + kernel + " SMP preempt mod_unload modversions "}, "\x00") + "\x00"
	const names = "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	write := func(v any) {
		must.OK(r.t, binary.Write(&b, binary.LittleEndian, v))
	}
	head := elf.Header64{Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: uint64(64 + len(info) + len(names)), Ehsize: 64, Shentsize: 64, Shnum: 3, Shstrndx: 2}
	copy(head.Ident[:], "\x7fELF\x02\x01\x01")
	write(head)
	b.WriteString(info + names)
	write(elf.Section64{})
	write(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC), Off: 64, Size: uint64(len(info))})
	write(elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(64 + len(info)), Size: uint64(len(names))})
	r.put("usr/lib/modules/"+kernel+"/updates/dkms/nvidia.ko base64", base64.StdEncoding.EncodeToString(b.Bytes())+"\n")
	r.put("usr/lib/modules/"+kernel+"/updates/dkms/nvidia-uvm.ko size=4000000", "")
}

// node simulates the machine.
func (r *recorded) node() *simhost.Node {
	r.t.Helper()
	n := must.Get(simhost.New(txtar.Format(r.all)))(r.t)
	return n
}
