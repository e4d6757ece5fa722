// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// SharedModules are the driver's modules for one kernel, which gpuadm mirror has built once for all machines that run it.
type SharedModules struct {
	Package  string            `json:"package"` // gpuadm-modules-open-6.1.0-28-amd64
	Kernel   string            `json:"kernel"`
	Version  string            `json:"version"` // of the driver
	Flavour  string            `json:"flavour"` // open, proprietary
	Vermagic string            `json:"vermagic"`
	Source   string            `json:"source"`  // SHA-256 of the package with the source
	Headers  string            `json:"headers"` // SHA-256 of the kernel's Module.symvers that they were built with
	Builder  string            `json:"builder"` // gpuadm, DKMS and the kernel's compiler
	Signer   Key               `json:"signer"`
	Symbols  map[string]uint32 `json:"symbols,omitempty"` // of the kernel, that the modules need, and their CRCs
	Problem  string            `json:"-"`                 // why this machine's kernel would not load them
}

// SharedFolder is where their package has modules, below the kernel's folder. depmod takes updates before the kernel's own.
const SharedFolder = "updates/gpuadm"

// SharedPackage is the name of their package.
func SharedPackage(flavour, kernel string) string { return "gpuadm-modules-" + flavour + "-" + kernel }

// shared reads those for target kernels from the list of a mirror. A kernel that has them is not compared again.
func (l *look) shared(f Facts, list string) []SharedModules {
	data := l.read(list)
	if data == nil {
		return nil
	}
	var lock struct {
		Modules []SharedModules `json:"modules"`
	}
	found := []SharedModules{}
	if err := json.Unmarshal(data, &lock); err != nil {
		return found // the check of the mirror says so, where something is to be installed from it
	}
	for _, m := range lock.Modules {
		if !slices.Contains(f.Kernel.Targets(f.Live), m.Kernel) {
			continue
		}
		has := false
		if f.Modules != nil {
			k, _ := f.Modules.Of(m.Kernel)
			has = k.Nvidia != nil && k.Nvidia.Version == m.Version
		}
		if !has {
			m.Problem = l.unlike(m)
		}
		m.Symbols = nil
		found = append(found, m)
	}
	return found
}

// unlike says in which symbol the kernel differs from the one that modules were built for. Where nothing says what the kernel has, the
// kernel compares when it loads them.
func (l *look) unlike(m SharedModules) string {
	kernel, err := KernelSymbols(l.v, m.Kernel)
	if err != nil {
		return err.Error()
	}
	for _, name := range slices.Sorted(maps.Keys(m.Symbols)) {
		switch crc, is := kernel[name]; {
		case len(kernel) == 0:
		case !is:
			return "they need the symbol " + name + ", which this kernel has not"
		case crc != m.Symbols[name]:
			return fmt.Sprintf("they were built for another build of the kernel: the CRC of the symbol %s is %#08x there and %#08x here", name, m.Symbols[name], crc)
		}
	}
	return ""
}

// symvers are the places of a kernel's Module.symvers: that of its headers, and what RHEL's and Fedora's kernels bring themselves.
// Sources: Documentation/kbuild/modules.rst in the kernel's tree; kernel.spec of centos-stream-9 and Fedora's (symvers.gz, symvers.xz).
func symvers(kernel string) []string {
	dir := "/lib/modules/" + kernel
	return []string{dir + "/build/Module.symvers", dir + "/symvers.gz", dir + "/symvers.xz", dir + "/symvers.zst"}
}

// KernelSymbols are the symbols that a kernel has for modules, and their CRCs; none where no file says so.
func KernelSymbols(v host.View, kernel string) (map[string]uint32, error) {
	for _, name := range symvers(kernel) {
		info, err := v.Stat(name)
		if err != nil || info.Size > maxModule {
			continue
		}
		r, err := unpacked(io.NewSectionReader(part{v, name}, 0, info.Size), path.Ext(name))
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", name, err)
		}
		found := map[string]uint32{}
		for lines := bufio.NewScanner(r); lines.Scan(); {
			crc, rest, _ := strings.Cut(lines.Text(), "\t")
			symbol, _, _ := strings.Cut(rest, "\t")
			if n, err := strconv.ParseUint(crc, 0, 32); err == nil && symbol != "" {
				found[symbol] = uint32(n)
			}
		}
		return found, nil
	}
	return nil, nil
}

// ModuleSymbols are the symbols that a module needs, and the CRCs that it was built with; none where its kernel compares no versions.
// Source: struct modversion_info in include/linux/module.h: a long, and a name of 64 bytes in all.
func ModuleSymbols(v host.View, name string) (map[string]uint32, error) {
	info, err := v.Stat(name)
	if err != nil {
		return nil, err
	}
	r, err := unpacked(io.NewSectionReader(part{v, name}, 0, min(info.Size, maxModule)), path.Ext(name))
	if err != nil {
		return nil, fmt.Errorf("cannot read module %s: %w", name, err)
	}
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("cannot read module %s: %w", name, err)
	}
	s := f.Section("__versions")
	if s == nil || s.Size > maxModinfo {
		return nil, nil
	}
	data, err := s.Data()
	found := map[string]uint32{}
	for ; len(data) >= 64; data = data[64:] {
		symbol, _, _ := bytes.Cut(data[8:64], []byte{0})
		found[string(symbol)] = f.ByteOrder.Uint32(data)
	}
	return found, err
}
