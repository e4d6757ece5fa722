// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Leftovers names what earlier instructions have left in apt's configuration.
func (apt) Leftovers(v host.View) (found []string) {
	var places []packages.Place
	for _, s := range allSources(v) {
		if strings.Contains(s.uri, "nvidia.github.io/") && !strings.Contains(s.uri, "/nvidia-docker") && len(s.signedBy) == 0 {
			found = append(found, fmt.Sprintf("%s: %s is trusted by every key that apt knows; it should say signed-by", s.file, s.uri))
		}
		places = append(places, packages.Place{File: s.file, URL: strings.TrimSuffix(strings.TrimSuffix(s.uri, "/")+" "+s.suite, " /")})
	}
	found = append(found, packages.LeftAt(places, "with different keys apt refuses to read any list")...)
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
