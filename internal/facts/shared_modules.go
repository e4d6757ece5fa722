// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// SharedModules are the driver's modules for one kernel, which gpuadm mirror has built once for all
// machines that run it.
type SharedModules struct {
	Package  string `json:"package"` // gpuadm-modules-open-6.1.0-28-amd64
	Kernel   string `json:"kernel"`
	Version  string `json:"version"` // of the driver
	Flavour  string `json:"flavour"` // open, proprietary
	Vermagic string `json:"vermagic"`
	Source   string `json:"source"`  // SHA-256 of the package with the source
	Headers  string `json:"headers"` // KernelSymbols of what they were built with
	Builder  string `json:"builder"` // system, DKMS and the kernel's compiler
	Signer   Key    `json:"signer"`
	Problem  string `json:"-"` // why this machine's kernel would not load them
}

// SharedFolder is where their package has modules, below the kernel's folder. depmod prefers the
// folder updates to the kernel's own modules.
const SharedFolder = "updates/gpuadm"

// Shared says whether the module is from the package of shared modules.
func (m ModuleFile) Shared() bool { return strings.Contains(m.Path, "/"+SharedFolder+"/") }

// SharedPackage returns the name of their package.
func SharedPackage(flavour, kernel string) string { return "gpuadm-modules-" + flavour + "-" + kernel }

// shared reads the modules for target kernels from the list of a mirror. A kernel that has them is
// not compared again.
func (g *gathering) shared(f Facts, list string) []SharedModules {
	data := g.read(list)
	if data == nil || f.Modules == nil {
		return nil
	}
	var lock struct {
		Modules map[string]SharedModules `json:"modules"`
	}
	found := []SharedModules{}
	if err := json.Unmarshal(data, &lock); err != nil {
		return found // the check of the mirror says so, where something is to be installed from it
	}

	kernels := append(f.Kernel.Targets(f.Live), f.Kernel.Fallback())
	for _, file := range slices.Sorted(maps.Keys(lock.Modules)) {
		m := lock.Modules[file]
		if !slices.Contains(kernels, m.Kernel) {
			continue
		}
		k, _ := f.Modules.Of(m.Kernel)
		if k.Nvidia == nil || k.Nvidia.Version != m.Version {
			m.Problem = m.otherBuild(g.v)
		}
		found = append(found, m)
	}
	return found
}

// otherBuild says why this machine's kernel would not load the modules; "" if it would, or if that
// is unknown: then the kernel compares the CRCs when it loads them.
func (m SharedModules) otherBuild(v host.View) string {
	symbols, err := KernelSymbols(v, m.Kernel)
	switch {
	case err != nil:
		return err.Error()
	case symbols == "" || symbols == m.Headers:
		return ""
	}
	return "they were built for another build of the kernel: the CRCs of its symbols have the digest " +
		m.Headers + " there and " + symbols + " here"
}

// KernelSymbols returns the SHA-256 of a kernel's list of symbols with their CRCs. The kernel's
// headers have that list, and so have RHEL's and Fedora's kernels; "" if neither has it.
// Sources: Documentation/kbuild/modules.rst in the kernel's tree; kernel.spec of centos-stream-9
// and of Fedora (symvers.gz, symvers.xz).
func KernelSymbols(v host.View, kernel string) (string, error) {
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
