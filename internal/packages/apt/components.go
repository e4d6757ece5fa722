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

// Enabled wants nothing: apt's files are gpuadm's.
func (apt) Enabled(*packages.Reading, packages.Lack) []converge.Want { return nil }

// Lacking returns the components that no entry of apt's names, as one Lack. gpuadm's own file then
// repeats the distribution's entries with the missing components. Entries of source code have no
// packages.
func Lacking(sys packages.System, components []string) []packages.Lack {
	files := packages.FilesIn(sys, "/etc/apt/sources.list.d", ".list", ".sources")
	var all, archive []source
	for _, file := range append([]string{"/etc/apt/sources.list"}, files...) {
		arch := func() string { return sys.Arch }
		all = append(all, parseSources(file, sys.Files[file], arch)...)
	}
	all = slices.DeleteFunc(all, func(s source) bool { return s.codeOnly })

	for _, s := range all {
		if s.ofDistribution() {
			archive = append(archive, s)
		}
	}

	var named []string
	for _, s := range all {
		// Another vendor's archive may have a component of the same name.
		inArchive := func(a source) bool { return a.uri == s.uri }
		if len(archive) == 0 || slices.ContainsFunc(archive, inArchive) {
			named = append(named, s.components...)
		}
	}

	isNamed := func(component string) bool { return slices.Contains(named, component) }
	missing := slices.DeleteFunc(slices.Clone(components), isNamed)
	if len(missing) == 0 {
		return nil
	}

	lack := packages.Lack{Name: "the component " + missing[0]}
	if len(missing) > 1 {
		lack.Name = "the components " + strings.Join(missing, ", ")
	}
	place := "apt's sources"
	if len(archive) > 0 {
		place = archive[0].file
		lack.File = "/etc/apt/sources.list.d/" + packages.OurFiles + "components.sources"
		lack.Data = repeated(archive, missing)
	}

	lack.Try = fmt.Sprintf("add %s behind main in %s, then sudo apt-get update", strings.Join(missing, " "), place)
	return []packages.Lack{lack}
}

// repeated returns a file that repeats sources with other components.
func repeated(sources []source, components []string) []byte {
	data := []byte(packages.Header)
	for _, s := range sources {
		const entry = "\n# %s\nTypes: deb\nURIs: %s\nSuites: %s\nComponents: %s\n"
		data = fmt.Appendf(data, entry, s.file, s.uri, s.suite, strings.Join(components, " "))
		for _, name := range slices.Sorted(maps.Keys(s.options)) {
			data = fmt.Appendf(data, "%s: %s\n", name, s.options[name])
		}
	}

	return data
}

// ofDistribution reports whether an entry is of the distribution's own archive: it has the
// component main, and is signed by the archive's key, or by any key that apt trusts. The packages
// debian-archive-keyring and ubuntu-keyring install those keys. An entry with another key is
// another vendor's archive, which may have no such components.
func (s source) ofDistribution() bool {
	if !slices.Contains(s.components, "main") {
		return false
	}
	if len(s.signedBy) == 0 {
		return s.options["signed-by"] == "" // else a key by its fingerprint, or a whole key
	}
	return slices.ContainsFunc(s.signedBy, func(key string) bool {
		name := path.Base(key)
		return strings.HasPrefix(name, "debian-archive-") || strings.HasPrefix(name, "ubuntu-archive-")
	})
}
