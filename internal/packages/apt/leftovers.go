// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Leftovers names what earlier instructions have left in apt's configuration.
func (apt) Leftovers(v host.View) (found []string) {
	by := map[string][]string{} // repository → files
	for _, s := range allSources(v) {
		switch {
		case strings.Contains(s.uri, "nvidia.github.io/nvidia-docker"):
			found = append(found, fmt.Sprintf("%s: nvidia-docker's repository is no longer kept; its packages hide the toolkit's", s.file))
		case strings.Contains(s.uri, "nvidia.github.io/") && len(s.signedBy) == 0:
			found = append(found, fmt.Sprintf("%s: %s is trusted by every key that apt knows; it should say signed-by", s.file, s.uri))
		}
		if strings.Contains(s.uri, "nvidia.c") || strings.Contains(s.uri, "nvidia.github.io/") {
			where := strings.TrimSuffix(s.uri, "/") + " " + s.suite
			if !slices.Contains(by[where], s.file) {
				by[where] = append(by[where], s.file)
			}
		}
	}
	for where, files := range by {
		if len(files) > 1 {
			found = append(found, fmt.Sprintf("%s: each names %s; with different keys apt refuses to read any list", strings.Join(files, ", "), strings.TrimSuffix(where, " /")))
		}
	}
	if i, err := v.Stat("/etc/apt/trusted.gpg"); err == nil && i.Size > 0 {
		found = append(found, "/etc/apt/trusted.gpg: keys that apt-key added are trusted for every repository")
	}
	names, _ := v.ReadDir("/etc/apt/trusted.gpg.d")
	for _, n := range names {
		if low := strings.ToLower(n); strings.Contains(low, "nvidia") || strings.Contains(low, "cuda") {
			found = append(found, "/etc/apt/trusted.gpg.d/"+n+": its key is trusted for every repository")
		}
	}
	return found
}
