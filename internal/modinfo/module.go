// SPDX-License-Identifier: Apache-2.0

// Package modinfo reads what a kernel module on disk says of itself, as modinfo(8) does: its
// version, its kernel, its parameters, and whose key has signed it.
package modinfo

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/xi2/xz"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/recall"
)

// Module is a kernel module on disk, as it describes itself.
type Module struct {
	Path     string   `json:"path"`
	Version  string   `json:"version,omitempty"`
	Vermagic string   `json:"vermagic,omitempty"` // its kernel, then what that kernel was built with
	License  string   `json:"license,omitempty"`
	Firmware []string `json:"firmware,omitempty"` // files below /lib/firmware that it asks for
	Signer   *Key     `json:"signer,omitempty"`   // nil: not signed

	Parameters []string `json:"parameters,omitempty"` // that it takes
}

// Kernel is the kernel the module was built for.
func (m Module) Kernel() string {
	kernel, _, _ := strings.Cut(m.Vermagic, " ")
	return kernel
}

// Flavour tells the open modules from the proprietary ones: open, proprietary, "" if the license is
// neither's.
// Source: MODULE_LICENSE in kernel-open/nvidia/nv.c of
// https://github.com/NVIDIA/open-gpu-kernel-modules; the proprietary module says "NVIDIA".
func (m Module) Flavour() string {
	switch m.License {
	case "Dual MIT/GPL":
		return "open"
	case "NVIDIA":
		return "proprietary"
	}
	return ""
}

const (
	maxModule  = 256 << 20 // bytes of a module, unpacked: the proprietary nvidia.ko has 100 MiB
	maxModinfo = 1 << 20   // bytes of its .modinfo section
	maxWindow  = 64 << 20  // bytes of an unpacker's window: xz -9 asks for as many
	maxRatio   = 64        // unpacked bytes for each packed byte: modules have 3 to 8
)

// Read reads what a module says about itself. Of an uncompressed file it reads a few pages.
func Read(v host.View, name string) (Module, error) {
	info, err := v.Stat(name)
	if err != nil {
		return Module{}, err
	}
	if info.Size > maxModule {
		return Module{}, fmt.Errorf("cannot read module %s: it has %d bytes", name, info.Size)
	}

	file := io.NewSectionReader(host.Part{View: v, Name: name}, 0, info.Size)
	var m Module
	plain, err := unpacked(file, path.Ext(name)) // by the file name's ending, as kmod does
	if err == nil {
		m, err = parseModule(plain, plain.Size())
	}
	m.Path = name
	switch {
	case err == nil:
		return m, nil
	case overMemory(err):
		err = fmt.Errorf("its unpacker asks for more than %d MiB", maxWindow>>20)
	}

	return m, fmt.Errorf("cannot read module %s: %w", name, err)
}

// ReadOnce is Read, which reads a file once as long as it stays the same; m may be nil.
func ReadOnce(m *recall.Memory, v host.View, name string) (Module, error) {
	return recall.Once(m, v, name, func(v host.View) (Module, error) { return Read(v, name) })
}

// overMemory says whether an unpacker has refused a file that needs more memory than it may take.
func overMemory(err error) bool {
	return errors.Is(err, xz.ErrMemlimit) ||
		errors.Is(err, zstd.ErrDecoderSizeExceeded) ||
		errors.Is(err, zstd.ErrWindowSizeExceeded)
}

// unpacked returns the contents of a file, which its ending says how to unpack.
func unpacked(file *io.SectionReader, ending string) (*io.SectionReader, error) {
	// Unpackers read single bytes, and each would be a read of the file.
	packed := bufio.NewReaderSize(file, 64<<10)
	var plain io.Reader
	switch ending {
	case ".gz":
		z, err := gzip.NewReader(packed)
		if err != nil {
			return nil, err
		}
		plain = z

	case ".zst":
		z, err := zstd.NewReader(packed,
			zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxMemory(maxModule),
			zstd.WithDecoderMaxWindow(maxWindow),
		)
		if err != nil {
			return nil, err
		}
		defer z.Close()
		plain = z

	case ".xz":
		// A port of the kernel's own unpacker. Whichever block asks for a larger dictionary is
		// refused, and one buffer is kept for all.
		z, err := xz.NewReader(packed, maxWindow)
		if err != nil {
			return nil, err
		}
		plain = z

	default:
		return file, nil
	}

	most := min(maxModule, maxRatio*file.Size()+maxModinfo)
	data, err := io.ReadAll(io.LimitReader(plain, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("unpacked it has more than %d bytes", most)
	}
	return io.NewSectionReader(bytes.NewReader(data), 0, int64(len(data))), nil
}

// parseModule reads a module's .modinfo section and the signature behind its end.
func parseModule(r io.ReaderAt, size int64) (Module, error) {
	var m Module
	file, err := elf.NewFile(io.NewSectionReader(r, 0, size))
	if err != nil {
		return m, err
	}
	section := file.Section(".modinfo")
	if section == nil || section.Type != elf.SHT_PROGBITS || section.Flags&elf.SHF_COMPRESSED != 0 {
		return m, errors.New("it has no .modinfo section")
	}
	if section.Size > maxModinfo {
		return m, fmt.Errorf("its .modinfo section has %d bytes", section.Size)
	}
	data := make([]byte, section.Size)
	if _, err := io.ReadFull(io.NewSectionReader(section, 0, int64(section.Size)), data); err != nil {
		return m, err
	}

	for entry := range strings.SplitSeq(string(data), "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		switch key {
		case "version":
			m.Version = value
		case "vermagic":
			m.Vermagic = strings.TrimSpace(value)
		case "license":
			m.License = value
		case "firmware":
			m.Firmware = append(m.Firmware, value)
		case "parmtype", "parm":
			// NAME:TYPE, and NAME:DESCRIPTION of a parameter that has one: NVIDIA's NVreg_
			// have none. Sources: include/linux/moduleparam.h in the kernel's tree;
			// NV_MODULE_PARAMETER in kernel-open/common/inc/nv-linux.h of the open modules.
			name, _, _ := strings.Cut(value, ":")
			m.Parameters = append(m.Parameters, name)
		}
	}

	slices.Sort(m.Parameters)
	m.Parameters = slices.Compact(m.Parameters)
	m.Signer, err = signer(r, size)
	return m, err
}
