// SPDX-License-Identifier: Apache-2.0

// Package kmodule makes files of kernel modules for tests, as far as modinfo(8) reads them.
package kmodule

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"embed"
	"encoding/binary"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/gpuadm/gpuadm/test/must"
)

// Object is the smallest ELF file with a .modinfo section, which holds words: version=580.95.05.
// Source: modinfo in include/linux/moduleparam.h of the kernel's tree.
func Object(words ...string) []byte {
	info := strings.Join(words, "\x00") + "\x00"
	const names = "\x00.modinfo\x00.shstrtab\x00"

	head := elf.Header64{
		Type:      uint16(elf.ET_REL),
		Machine:   uint16(elf.EM_X86_64),
		Version:   1,
		Shoff:     uint64(64 + len(info) + len(names)),
		Ehsize:    64,
		Shentsize: 64,
		Shnum:     3,
		Shstrndx:  2,
	}
	copy(head.Ident[:], "\x7fELF\x02\x01\x01")

	var b bytes.Buffer
	for _, part := range []any{
		head, []byte(info + names),
		elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC), Off: 64, Size: uint64(len(info))},
		elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(64 + len(info)), Size: uint64(len(names))},
	} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}

	return b.Bytes()
}

// Nvidia is a module nvidia.
func Nvidia(version, license, kernel string) []byte {
	return Object("license="+license, "version="+version, "vermagic="+kernel+" SMP mod_unload ")
}

// Open is the open module nvidia 580.95.05, with the firmware and two of the parameters that it has.
func Open(kernel string) []byte {
	return Object(
		"license=Dual MIT/GPL", "version=580.95.05",
		"firmware=nvidia/580.95.05/gsp_ga10x.bin", "firmware=nvidia/580.95.05/gsp_tu10x.bin",
		"vermagic="+kernel+" SMP preempt mod_unload modversions ",
		"parmtype=NVreg_EnableMSI:int",
		"parm=NvSwitchBlacklist:NvSwitchBlacklist=uuid[,uuid...]", "parmtype=NvSwitchBlacklist:charp",
	)
}

// Signed appends a signature to a module, as the kernel's scripts/sign-file does.
func Signed(module, signature []byte) []byte {
	const pkcs7 = 2
	trailer := []byte{0, 0, pkcs7, 0, 0, 0, 0, 0}
	trailer = binary.BigEndian.AppendUint32(trailer, uint32(len(signature)))
	return bytes.Join([][]byte{module, signature, trailer, []byte("~Module signature appended~\n")}, nil)
}

//go:embed testdata
var signatures embed.FS

// Signature is a recorded signature of a module in a package of Debian's kernel:
// debian12-kernel-6.1, debian12-kernel-6.12.
func Signature(t testing.TB, name string) []byte {
	t.Helper()
	return must.Get(signatures.ReadFile("testdata/" + name + ".p7s"))(t)
}

// Packed packs a module by the ending of its file: .gz, .zst, .xz, or "".
func Packed(t testing.TB, ending string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch ending {
	case ".gz":
		w = gzip.NewWriter(&b)
	case ".zst":
		w, err = zstd.NewWriter(&b)
	case ".xz": // as DKMS and distributions call it
		xz := exec.Command("xz", "--check=crc32", "--stdout")
		xz.Stdin = bytes.NewReader(data)
		return must.Get(xz.Output())(t)
	default:
		return data
	}

	must.OK(t, err)
	must.Get(w.Write(data))(t)
	must.OK(t, w.Close())
	return b.Bytes()
}
