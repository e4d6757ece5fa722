// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

const dnfRepos = "/etc/yum.repos.d"

// Leftovers names what earlier instructions have left in dnf's configuration.
func (dnf) Leftovers(v host.View) (found []string) {
	names, _ := v.ReadDir(dnfRepos)
	by := map[string][]string{} // repository → files
	for _, n := range names {
		file := dnfRepos + "/" + n
		data, err := v.ReadFile(file)
		if err != nil || !strings.HasSuffix(n, ".repo") {
			continue
		}
		for _, r := range parseRepos(data) {
			where := strings.TrimSuffix(r.url, "/")
			if strings.Contains(where, "nvidia.github.io/nvidia-docker") {
				found = append(found, fmt.Sprintf("%s: nvidia-docker's repository is no longer kept; its packages hide the toolkit's", file))
			}
			if nvidias(where) && !slices.Contains(by[where], file) {
				by[where] = append(by[where], file)
			}
		}
	}
	for where, files := range by {
		if len(files) > 1 {
			found = append(found, fmt.Sprintf("%s: each names %s; what one says of keys and locks does not hold for the other", strings.Join(files, ", "), where))
		}
	}
	return found
}

func nvidias(url string) bool {
	return strings.Contains(url, "download.nvidia.c") || strings.Contains(url, "nvidia.github.io/")
}
