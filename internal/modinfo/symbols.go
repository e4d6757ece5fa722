// SPDX-License-Identifier: Apache-2.0

package modinfo

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Symbols returns the SHA-256 of a kernel's list of symbols with their CRCs. The kernel's
// headers have that list, and so have RHEL's and Fedora's kernels; "" if neither has it.
// Sources: Documentation/kbuild/modules.rst in the kernel's tree; kernel.spec of centos-stream-9
// and of Fedora (symvers.gz, symvers.xz).
func Symbols(v host.View, kernel string) (string, error) {
	dir := "/lib/modules/" + kernel
	for _, name := range []string{
		dir + "/build/Module.symvers",
		dir + "/symvers.gz", dir + "/symvers.xz", dir + "/symvers.zst",
	} {
		info, err := v.Stat(name)
		if err != nil || info.Size > maxModule {
			continue
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
	return "", nil
}
