// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
)

// Enabled wants our files.
func (apt) Enabled(_ *packages.Reading, lacks []packages.Lack) (wants []converge.Want) {
	for _, l := range lacks {
		wants = append(wants, l.Enabling()...)
	}
	return wants
}

// archiveKeys are the keys that sign the archives of Debian and Ubuntu: their packages debian-archive-keyring and
// ubuntu-keyring. What has another key is another's archive, which may have no such components.
func archiveKeys() []string { return []string{"debian-archive-", "ubuntu-archive-"} }

// lackingComponents looks which components no entry of apt's names. Ours then says of the distribution's entries what they
// say, with the components that they lack.
func lackingComponents(sys packages.System, components []string) (packages.Lack, bool) {
	files := append([]string{"/etc/apt/sources.list"}, packages.FilesIn(sys, "/etc/apt/sources.list.d", ".list", ".sources")...)
	var named []string
	var all, archive []source
	for _, file := range files {
		all = append(all, parseSources(file, sys.Files[file], func() string { return sys.Arch })...)
	}
	for _, s := range all {
		if s.ofDistribution() {
			archive = append(archive, s)
		}
	}
	for _, s := range all { // another vendor's archive may have a component of the same name
		if len(archive) == 0 || slices.ContainsFunc(archive, func(a source) bool { return a.uri == s.uri }) {
			named = append(named, s.components...)
		}
	}
	missing := slices.DeleteFunc(slices.Clone(components), func(c string) bool { return slices.Contains(named, c) })
	if len(missing) == 0 {
		return packages.Lack{}, false
	}
	l := packages.Lack{Name: "the component " + missing[0], Try: fmt.Sprintf("add %s behind main in apt's sources, then apt-get update", strings.Join(missing, " "))}
	if len(missing) > 1 {
		l.Name = "the components " + strings.Join(missing, ", ")
	}
	if len(archive) == 0 {
		return l, true
	}
	l.Try = strings.Replace(l.Try, "apt's sources", archive[0].file, 1)
	l.File, l.Data = "/etc/apt/sources.list.d/"+packages.OurFiles+"components.sources", []byte(packages.Header)
	for _, s := range archive {
		l.Data = fmt.Appendf(l.Data, "\n# %s\nTypes: deb\nURIs: %s\nSuites: %s\nComponents: %s\n", s.file, s.uri, s.suite, strings.Join(missing, " "))
		for _, name := range slices.Sorted(maps.Keys(s.options)) {
			l.Data = fmt.Appendf(l.Data, "%s: %s\n", name, s.options[name])
		}
	}
	return l, true
}

// ofDistribution says whether an entry is of the archive that the system itself comes from: it has main, and is signed by the
// archive's key, or by any that apt trusts.
func (s source) ofDistribution() bool {
	if !slices.Contains(s.components, "main") || len(s.signedBy) == 0 && s.options["signed-by"] != "" {
		return false
	}
	return len(s.signedBy) == 0 || slices.ContainsFunc(s.signedBy, func(key string) bool {
		return slices.ContainsFunc(archiveKeys(), func(begin string) bool { return strings.HasPrefix(path.Base(key), begin) })
	})
}

// Lacking returns the components among the needs that no file about sources of a system has, as one Lack.
func Lacking(s packages.System, needs []string) []packages.Lack {
	if l, is := lackingComponents(s, needs); is {
		return []packages.Lack{l}
	}
	return nil
}
