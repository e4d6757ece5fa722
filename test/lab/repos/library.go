// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"runtime"
)

// library makes a shared library that has a name and nothing in it: enough for ldconfig to link to
// it. It is one segment with a dynamic section, an empty hash table and a symbol table of nothing.
// Source: System V ABI, chapter 5; ldconfig's elf/readelflib.c in glibc, which asks for PT_DYNAMIC
// and DT_SONAME.
func library(soname string) (string, error) {
	const (
		headers = 64 + 2*56 // the file's header and two of segments
		symtab  = headers
		hash    = symtab + 24
		strtab  = hash + 16
	)
	names := "\x00" + soname + "\x00"
	dynamicAt := uint64(strtab+len(names)+7) &^ 7
	entries := []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: 1},
		{Tag: int64(elf.DT_HASH), Val: hash},
		{Tag: int64(elf.DT_STRTAB), Val: strtab},
		{Tag: int64(elf.DT_SYMTAB), Val: symtab},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))},
		{Tag: int64(elf.DT_SYMENT), Val: 24},
		{Tag: int64(elf.DT_NULL)},
	}
	dynamicSize := uint64(16 * len(entries))
	size := dynamicAt + dynamicSize

	head := elf.Header64{
		Ident: [16]byte{
			0x7f, 'E', 'L', 'F',
			byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT),
		},
		Type:      uint16(elf.ET_DYN),
		Machine:   uint16(machine()),
		Version:   uint32(elf.EV_CURRENT),
		Phoff:     64,
		Ehsize:    64,
		Phentsize: 56,
		Phnum:     2,
		Shentsize: 64,
	}
	readWrite := uint32(elf.PF_R | elf.PF_W)
	segments := []elf.Prog64{
		{
			Type:   uint32(elf.PT_LOAD),
			Flags:  readWrite,
			Filesz: size,
			Memsz:  size,
			Align:  0x10000,
		},
		{
			Type:   uint32(elf.PT_DYNAMIC),
			Flags:  readWrite,
			Off:    dynamicAt,
			Vaddr:  dynamicAt,
			Paddr:  dynamicAt,
			Filesz: dynamicSize,
			Memsz:  dynamicSize,
			Align:  8,
		},
	}

	var out bytes.Buffer
	emptyHash := [4]uint32{1, 1, 0, 0}
	for _, part := range []any{head, segments, elf.Sym64{}, emptyHash, []byte(names)} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			return "", fmt.Errorf("cannot make the library %s: %w", soname, err)
		}
	}

	out.Write(make([]byte, int(dynamicAt)-out.Len()))
	if err := binary.Write(&out, binary.LittleEndian, entries); err != nil {
		return "", fmt.Errorf("cannot make the library %s: %w", soname, err)
	}
	return out.String(), nil
}

func machine() elf.Machine {
	if runtime.GOARCH == "arm64" {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}
