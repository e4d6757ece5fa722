// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"path"
	"strings"
)

// Library is a user library of the driver.
type Library struct {
	Name    string `json:"name"` // libnvidia-ml.so, libcuda.so
	Version string `json:"version"`
	Path    string `json:"path"`
}

// libraries finds which version of the user libraries programs load: the file that the library's
// link leads to.
func (g *gathering) libraries(arch string) (found []Library) {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[arch]
	for _, lib := range []string{"libnvidia-ml.so", "libcuda.so"} {
		for _, dir := range []string{"/usr/lib/" + triplet, "/usr/lib64", "/usr/lib", "/usr/lib/" + triplet + "/nvidia/current"} {
			file, err := g.v.Resolve(path.Join(dir, lib+".1"))
			version, ok := strings.CutPrefix(path.Base(file), lib+".")
			if err != nil || !ok || !strings.Contains(version, ".") || !g.exists(file) {
				continue
			}
			found = append(found, Library{lib, version, file})
			break
		}
	}
	return found
}
