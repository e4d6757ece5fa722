// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"maps"
	"slices"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/runtime/toolkit"
)

// wanted is all that the spec asks to install, and from where.
type wanted struct {
	manager string
	repos   []packages.Repository
	mirrors []string // folders that gpuadm mirror wrote

	driver  map[string]packages.State
	toolkit map[string]packages.State

	// Of the driver's packages.
	family  *packages.Family
	stream  string              // of dnf's module nvidia-driver; "" where dnf has none
	headers map[string]string   // by kernel that modules are built for
	brings  map[string][]string // kernel modules, by package
	asFound []string            // packages that no build needs now: they stay as found
	ifThere []string            // headers, if available, of kernels that need no driver yet
	lacks   []packages.Lack     // repositories and components that the packages need enabled
	enable  bool                // gpuadm enables these
}

func wantedPackages(d drivers.Driver, s spec.Spec, f facts.Facts) (wanted, error) {
	w := wanted{manager: f.OS.Packager().Name}
	choice, asked, err := d.Choose(s, f)
	if err != nil {
		return w, err
	}

	if asked && choice.Source != drivers.SourceNone {
		w.addDriver(choice, s.Driver, f)
	}
	if s.Has("toolkit") {
		w.addRepository(toolkit.Repository(s.Toolkit, w.manager, f.Arch))
		w.toolkit = toolkit.Packages(s.Toolkit)
	}
	w.preferMirrors(f)
	return w, nil
}

// addDriver adds what the driver's choice needs.
func (w *wanted) addDriver(choice drivers.Choice, s spec.Driver, f facts.Facts) {
	w.repos = choice.Repositories()
	w.driver = choice.Packages()
	w.stream = choice.Stream
	w.headers = choice.Headers()
	w.family = choice.Family()
	w.brings = choice.Brings()
	w.asFound, w.ifThere = choice.Spared(s, f)

	if choice.Source == drivers.SourceRunfile && isMirror(f, s.Repo.URL) {
		// The packages that build modules come from the same folder.
		w.repos = []packages.Repository{{
			ID:          "driver",
			About:       "what builds NVIDIA's modules",
			URL:         s.Repo.URL,
			Key:         s.Repo.Key,
			Fingerprint: s.Repo.Fingerprint,
			Signed:      packages.SignedAs(s.Repo.Signature, packages.SignedBoth),
		}}
	}

	w.enable = s.Repo.EnableNeeded
	// An installed driver has found what it needs.
	installed := f.Modules != nil && len(f.Modules.Libraries) > 0
	if w.enable || !installed {
		w.lacks = choice.Lacks(f)
	}
}

// addRepository adds a repository, once if both sections name it: apt refuses one URL with two
// keyrings (apt-pkg/deb/debmetaindex.cc: "Conflicting values set for option Signed-By").
func (w *wanted) addRepository(r packages.Repository) {
	for i, other := range w.repos {
		sameKey := other.Fingerprint == r.Fingerprint && w.signs(other) == w.signs(r)
		if r.URL != "" && other.URL == r.URL && sameKey {
			w.repos[i].Pins = slices.Concat(other.Pins, r.Pins)
			return
		}
	}

	w.repos = append(w.repos, r)
}

// signs says what a repository's key signs: for apt the metadata, and so all.
func (w *wanted) signs(r packages.Repository) packages.Signed {
	if w.manager == "apt" && r.Signed == packages.SignedMetadata {
		return packages.SignedBoth
	}
	return r.Signed
}

// isMirror says whether gpuadm mirror wrote the folder that a URL names.
func isMirror(f facts.Facts, url string) bool {
	return slices.ContainsFunc(packages.LocksOf(url), func(lock string) bool {
		_, exists := f.Files[lock]
		return exists
	})
}

// preferMirrors takes packages from a mirror, if gpuadm mirror wrote one: the network may not reach
// the distribution's newer ones. A pin does this for apt; dnf reads no other repositories.
func (w *wanted) preferMirrors(f facts.Facts) {
	for i, r := range w.repos {
		if !isMirror(f, r.URL) {
			continue
		}
		w.mirrors = append(w.mirrors, packages.FolderOf(r.URL))
		w.repos[i].Whole = true
		w.repos[i].Pins = append(slices.Clone(r.Pins), packages.Pin{
			Names:    []string{"*"},
			Pin:      "release o=" + packages.MirrorOrigin,
			Priority: 990,
		})

		if r.ID == "driver" { // a mirror lists no streams, and has what the driver depends on
			w.stream = ""
			w.lacks = nil
			w.enable = false
		}
	}
}

// all are the packages of both sections.
func (w wanted) all() map[string]packages.State {
	all := make(map[string]packages.State, len(w.driver)+len(w.toolkit))
	maps.Copy(all, w.driver)
	maps.Copy(all, w.toolkit)
	return all
}

func (w wanted) names() []string {
	return slices.Sorted(maps.Keys(w.all()))
}

// held are the packages that are held in their version.
func (w wanted) held() (names []string) {
	for _, name := range w.names() {
		if w.all()[name].Held {
			names = append(names, name)
		}
	}
	return names
}

// enables are the repositories and components that gpuadm enables: none, unless the spec says
// enable_needed.
func (w wanted) enables() []packages.Lack {
	if !w.enable {
		return nil
	}
	return w.lacks
}

// reads are the files about sources that gpuadm writes, and those of packages that gpuadm installs
// for them; hold is their desired content.
func (w wanted) reads(contents map[string][]byte) (files []string, hold map[string][]byte) {
	files = append(slices.Sorted(maps.Keys(contents)), packages.EnabledBy(w.enables())...)
	hold = maps.Clone(contents)
	for _, lack := range w.enables() {
		if lack.File != "" {
			hold[lack.File] = lack.Data
		}
	}

	return files, hold
}
