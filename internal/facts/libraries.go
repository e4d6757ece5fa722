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

// libraries finds the versions of the user libraries that programs load: those of the files to
// which the libraries' links lead.
func (g *gathering) libraries(arch string) (found []Library) {
	multiarch := "/usr/lib/" // Debian's and Ubuntu's
	switch arch {
	case "amd64":
		multiarch += "x86_64-linux-gnu"
	case "arm64":
		multiarch += "aarch64-linux-gnu"
	}

	for _, lib := range []string{"libnvidia-ml.so", "libcuda.so"} {
		for _, dir := range []string{multiarch, "/usr/lib64", "/usr/lib", multiarch + "/nvidia/current"} {
			file, err := g.v.Resolve(path.Join(dir, lib+".1"))
			if err != nil {
				continue
			}
			version, ok := strings.CutPrefix(path.Base(file), lib+".")
			if !ok || !strings.Contains(version, ".") || !g.exists(file) {
				continue
			}
			found = append(found, Library{
				Name:    lib,
				Version: version,
				Path:    file,
			})
			break
		}
	}

	return found
}
