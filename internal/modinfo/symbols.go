// SPDX-License-Identifier: Apache-2.0

package modinfo

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/recall"
)

// SymbolsOnce is Symbols, and remembers a list of symbols that it has read.
func SymbolsOnce(m *recall.Memory, v host.View, kernel string) (string, error) {
	file, err := symbolsFile(v, kernel)
	if err != nil || file == "" {
		return "", err
	}
	return recall.Once(m, v, file, func(v host.View) (string, error) {
		return symbolsDigest(v, file)
	})
}

// Symbols returns the SHA-256 of a kernel's list of symbols with their CRCs. The kernel's
// headers have that list, and so have RHEL's and Fedora's kernels; "" if neither has it.
// Sources: Documentation/kbuild/modules.rst in the kernel's tree; kernel.spec of centos-stream-9
// and of Fedora (symvers.gz, symvers.xz).
func Symbols(v host.View, kernel string) (string, error) {
	file, err := symbolsFile(v, kernel)
	if err != nil || file == "" {
		return "", err
	}
	return symbolsDigest(v, file)
}

// symbolsFile returns the file with a kernel's list of symbols; "" if there is none.
func symbolsFile(v host.View, kernel string) (string, error) {
	dir := "/lib/modules/" + kernel
	for _, name := range []string{
		dir + "/build/Module.symvers",
		dir + "/symvers.gz", dir + "/symvers.xz", dir + "/symvers.zst",
	} {
		info, err := v.Stat(name)
		switch {
		case host.NotExist(err):
		case err != nil:
			return "", err
		case info.Size <= maxModule:
			return name, nil
		}
	}

	return "", nil
}

// symbolsDigest returns the SHA-256 of what a file has when it is unpacked.
func symbolsDigest(v host.View, name string) (string, error) {
	info, err := v.Stat(name)
	if err != nil {
		return "", err
	}

	file := io.NewSectionReader(host.Part{View: v, Name: name}, 0, info.Size)
	plain, err := unpacked(file, path.Ext(name))
	sum := sha256.New()
	if err == nil {
		_, err = io.Copy(sum, plain)
	}
	if err != nil {
		return "", fmt.Errorf("cannot read %s: %w", name, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
