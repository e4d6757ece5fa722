// SPDX-License-Identifier: Apache-2.0

// Package drivertest has what the tests of the driver's packages share: simulated machines, files
// of kernel modules, and the problems that checks find.
package drivertest

import (
	"bytes"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Node is a simulated machine.
func Node(t *testing.T, archive string) *simhost.Node {
	t.Helper()
	return must.Get(simhost.New([]byte(archive)))(t)
}

// Module is an ELF file with what a kernel module says of itself.
func Module(version, license, kernel string) []byte {
	info := "license=" + license + "\x00version=" + version + "\x00vermagic=" + kernel + " SMP mod_unload \x00"
	const names = "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	head := elf.Header64{Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: uint64(64 + len(info) + len(names)), Ehsize: 64, Shentsize: 64, Shnum: 3, Shstrndx: 2}
	copy(head.Ident[:], "\x7fELF\x02\x01\x01")
	for _, part := range []any{
		head, []byte(info + names),
		elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: 64, Size: uint64(len(info))},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(64 + len(info)), Size: uint64(len(names))},
	} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// ModuleFile is a kernel module in a machine's archive.
func ModuleFile(path, version, license, kernel string) string {
	return File(path, Module(version, license, kernel))
}

// File is a file of any bytes in a machine's archive.
func File(path string, data []byte) string {
	return "-- " + path + " base64 --\n" + base64.StdEncoding.EncodeToString(data) + "\n"
}

// Problems are what the checks among wants find on a machine.
func Problems(t *testing.T, wants []converge.Want, v host.View) string {
	t.Helper()
	var found []string
	for _, w := range wants {
		if w.Ref().Kind != "check" {
			continue
		}
		state, err := w.Look(t.Context(), v)
		must.That(t, err == nil, "%v: %v", w.Ref().Name, err)
		if _, err := w.To(state); err != nil {
			found = append(found, err.Error())
		}
	}
	return strings.Join(found, "\n")
}

// Changes says of a simulated program that it changes the machine, whatever its arguments are.
func Changes([]string) bool { return false }

// Lay writes a file, with the folders on the way to it.
func Lay(f *files.Files, name string, data []byte) error {
	if err := Folders(f, path.Dir(name)); err != nil {
		return err
	}
	return f.WriteFile(name, data, host.Attr{Mode: 0o644})
}

// Folders makes a folder, with those on the way to it.
func Folders(f *files.Files, dir string) error {
	if _, err := f.Stat(dir); dir == "/" || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := Folders(f, path.Dir(dir)); err != nil {
		return err
	}
	return f.Mkdir(dir, host.Attr{Mode: 0o755})
}
