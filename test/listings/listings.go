// SPDX-License-Identifier: Apache-2.0

// Package listings holds lists of NVIDIA driver packages as others recorded them in real
// repositories: names, versions, dependencies, and the source of each list. What gpuadm asks for is
// held against them, and the lab's repositories are made of them. The package knows nothing of
// gpuadm.
//
//	for _, l := range listings.For("ubuntu2404", "nvidia") {
//		if has, known := l.Has("nvidia-utils"); known && !has { … }
//	}
package listings

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
)

// Scope says of what a listing is complete.
type Scope string

const (
	Repository Scope = "repository" // all driver packages that the repository has in this version
	Pocket     Scope = "pocket"     // all driver packages of one pocket of a distribution's archive
	Release    Scope = "release"    // what came in or changed with one release of the distribution
	Install    Scope = "install"    // all driver packages that one machine had
	Part       Scope = "part"       // some
)

// Package is one line of a listing.
type Package struct {
	Name    string // it may have {k}, {v} or * in it: a kernel, a version, any text
	Version string // as the package manager writes it; "" where it was not read
	Arch    string // as the package manager writes it; "" where it was not read
}

// Listing is what one source, or several, told of one version in one repository.
type Listing struct {
	Distro     string // such as ubuntu2404 and rhel9; "debian" is Debian 12 or 13, of which the source says no more
	Repository string // nvidia, ubuntu, debian, amazon, microsoft, redhat or almalinux
	Version    string // the driver's, or its branch, or a word
	Pocket     string // of Debian's archive: stable, security or backports
	Scope      Scope
	Complete   bool // Scope is not Part
	Packages   []Package

	// By the package's name, as the package manager writes it.
	Depends, PreDepends, Provides, Component map[string]string
	// Transitional is the package that an empty one draws in; "?" where it was not read.
	Transitional map[string]string
	// FileConflicts are sentences on files that two packages have without a Conflicts; Conflicts
	// are other sentences.
	FileConflicts, Conflicts map[string]string
	// Absent are names that were looked for and are not there.
	Absent []string
	Notes  []string
	Source string
}

//go:embed data/*.txt
var data embed.FS

// All is every listing, by the name of its file. They are read once.
func All() []Listing { return slices.Clone(all()) }

var all = sync.OnceValue(func() []Listing {
	entries, err := data.ReadDir("data")
	if err != nil {
		panic("internal error: the listings are not embedded: " + err.Error())
	}
	var all []Listing
	for _, e := range entries {
		text, err := data.ReadFile(path.Join("data", e.Name()))
		if err != nil {
			panic("internal error: a listing is not embedded: " + err.Error())
		}
		l, err := Parse(string(text))
		if err == nil && l.file() != e.Name() {
			err = fmt.Errorf("it is a listing of %s", l)
		}
		if err != nil {
			panic(fmt.Sprintf("internal error: cannot read listing %s: %v", e.Name(), err))
		}
		all = append(all, l)
	}

	return all
})

// For is every listing of one distribution and repository. Those of "debian" are listings of
// debian12 and of debian13.
func For(distro, repository string) []Listing {
	return slices.DeleteFunc(All(), func(l Listing) bool {
		same := l.Distro == distro || l.Distro == "debian" && strings.HasPrefix(distro, "debian")
		return !same || l.Repository != repository
	})
}

func (l Listing) String() string {
	s := l.Distro + " " + l.Repository + " " + l.Version
	if l.Pocket != "" {
		s += "-" + l.Pocket
	}
	return s
}

func (l Listing) file() string {
	return strings.ReplaceAll(l.String(), " ", "__") + ".txt"
}

// Named are the lines of a package, several where the listing has several versions of it.
func (l Listing) Named(name string) []Package {
	var found []Package
	for _, p := range l.Packages {
		if p.matches(name) {
			found = append(found, p)
		}
	}

	return found
}

// Has tells whether the repository has a package, and whether the listing says anything of that: a
// name that a part of a repository lacks may be in the rest of it.
func (l Listing) Has(name string) (yes, known bool) {
	if len(l.Named(name)) > 0 {
		return true, true
	}
	return false, slices.Contains(l.Absent, name) || l.Scope == Repository || l.Scope == Pocket
}

// VersionOf is the first version of a package that was read, "" if none was.
func (l Listing) VersionOf(name string) string {
	for _, p := range l.Named(name) {
		if p.Version != "" {
			return p.Version
		}
	}
	return ""
}

// ComponentOf is the component of the archive that a package is in, "" if none was read.
func (l Listing) ComponentOf(name string) string { return l.Component[name] }

// Upstream is the package's version without epoch and revision: 3:580.95.05-1.el9 is 580.95.05.
func (p Package) Upstream() string {
	v := p.Version
	if _, rest, ok := strings.Cut(v, ":"); ok {
		v = rest
	}
	if i := strings.LastIndex(v, "-"); i >= 0 {
		v = v[:i]
	}
	return v
}

// matches compares a name with the package's, in which {k}, {v} and * are any text.
func (p Package) matches(name string) bool {
	pattern := strings.NewReplacer("{k}", "*", "{v}", "*").Replace(p.Name)
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}
