// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/packages"
)

// Disable sets enabled=0 in each section that names the URL of one of the repositories.
func (dnf) Disable(file string, data []byte, repos []packages.Repository, sys packages.System) []byte {
	var out strings.Builder
	section := ""
	end := func() {
		out.WriteString(disabled(section, slices.ContainsFunc(enabled(file, []byte(section)), func(r repository) bool {
			return slices.ContainsFunc(repos, func(o packages.Repository) bool { return r.names(o.URL, sys) })
		})))
		section = ""
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(strings.TrimSpace(line), "[") {
			end()
		}
		section += line
	}
	end()
	return []byte(out.String())
}

func disabled(section string, is bool) string {
	if !is {
		return section
	}
	lines := slices.Collect(strings.Lines(section))
	at := slices.IndexFunc(lines, func(l string) bool {
		key, _, _ := strings.Cut(l, "=")
		return strings.TrimSpace(key) == "enabled"
	})
	if at >= 0 {
		lines[at] = packages.Instead("enabled=0", lines[at])
	} else {
		head := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), "[") })
		lines = slices.Insert(lines, head+1, packages.Instead("enabled=0", ""))
	}
	return strings.Join(lines, "")
}

// names says whether a section is of a URL: dnf.conf(5), baseurl and variables.
func (r repository) names(url string, sys packages.System) bool {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[sys.Arch]
	major, _, _ := strings.Cut(sys.Version, ".")
	plain := func(u, release string) string {
		for _, v := range []struct{ name, value string }{{"basearch", arch}, {"arch", arch}, {"releasever", release}} {
			u = strings.NewReplacer("$"+v.name, v.value, "${"+v.name+"}", v.value).Replace(u)
		}
		return strings.TrimRight(strings.Replace(u, "file:///", "file:/", 1), "/")
	}
	for _, key := range []string{"baseurl", "mirrorlist", "metalink"} {
		for _, u := range strings.FieldsFunc(r.values[key], func(c rune) bool { return c == ' ' || c == ',' }) {
			if is := plain(url, major); plain(u, major) == is || plain(u, sys.Version) == is {
				return true
			}
		}
	}
	return false
}
