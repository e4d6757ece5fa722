// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

const dnfRepos = "/etc/yum.repos.d"

// Leftovers names what earlier instructions have left in dnf's configuration.
func (dnf) Leftovers(v host.View) []string {
	var places []packages.Place
	for _, name := range packages.ListOf(v, dnfRepos) {
		file := dnfRepos + "/" + name
		if data, err := v.ReadFile(file); err == nil && strings.HasSuffix(name, ".repo") {
			for _, r := range enabled(file, data) {
				places = append(places, packages.Place{File: file, URL: r.url()})
			}
		}
	}
	return packages.LeftAt(places, "what one says of keys and locks does not hold for the other")
}
