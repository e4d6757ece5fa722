// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// unnamed says which components of the distribution's archive no source of apt's names, where the driver comes from them:
// Debian's installer leaves contrib and non-free out. It is said and not refused, since a mirror may name its own.
// Source: sources.list(5).
func (c Choice) unnamed(v host.View) string {
	if c.Repo.Component == "" || c.Repo.URL != "" {
		return ""
	}
	var words []string
	files := []string{"/etc/apt/sources.list"}
	names, _ := v.ReadDir("/etc/apt/sources.list.d")
	for _, name := range names {
		files = append(files, path.Join("/etc/apt/sources.list.d", name))
	}
	for _, file := range files {
		text, _ := v.ReadFile(file) // what cannot be read, apt will complain about
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 0 && (fields[0] == "deb" || strings.EqualFold(fields[0], "components:")) {
				words = append(words, fields[1:]...)
			}
		}
	}
	missing := slices.DeleteFunc(c.components(), func(name string) bool { return slices.Contains(words, name) })
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("the driver is in the components %s of the archive, and apt's sources do not name %s: add them behind main, then apt-get update",
		strings.Join(c.components(), " "), strings.Join(missing, ", "))
}

// components are those of the archive that the packages are in. Ubuntu has the companions in another one than the driver.
// Source: https://packages.ubuntu.com/resolute/nvidia-fabricmanager-580 and https://packages.ubuntu.com/resolute/libnvidia-nscq-580.
func (c Choice) components() []string {
	names := strings.Fields(c.Repo.Component)
	companion := func(m Member) bool { return slices.Contains([]string{"fabricmanager", "nscq", "imex"}, m.Role) }
	if c.Source == SourceUbuntu && slices.ContainsFunc(c.Members, companion) {
		names = append(names, "multiverse")
	}
	return names
}
