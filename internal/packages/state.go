// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// State is the state of one package. Its text is "VERSION[ held][ auto][ BROKEN]"; the zero State,
// "", is not installed.
//
// A wanted version may be open: "GROUP=PATTERN", where PATTERN is a driver's or toolkit's own
// version ("580.95.05"), or the beginning of a version and ".*" ("580.*"), or "*". All members of a
// group get the same own version, the newest for which each has a candidate. "removed" is an open
// state too: the packager decides what remains of the package (its configuration, or nothing).
// Resolve replaces open states by exact ones.
type State struct {
	Version string // the packager's, with epoch and revision: 3:580.95.05-1.el9, 580.95.05-0ubuntu1
	Held    bool   // held by apt-mark, locked by dnf versionlock
	Auto    bool   // installed as a dependency; apt only: dnf has its own record

	// Broken is "", one of dpkg's words (half-configured, half-installed, unpacked,
	// triggers-awaited, …; config-files: removed), or incomplete.
	Broken string
}

const (
	removed     = "removed"      // as a Version: to be removed, whatever remains
	ifOffered   = "available"    // as a Version: in the family's version, where a source has it
	ifNeeded    = "needed"       // as a Version: as it is, unless the other changes make it unneeded
	Nowhere     = "-"            // as a Version: not installed, but held so
	ConfigFiles = "config-files" // as Broken: removed, its configuration remains
	Incomplete  = "incomplete"   // as Broken: installed and held, and a package that it needs is not there
)

// Parse reads what String wrote.
func Parse(text converge.State) State {
	var s State
	for i, word := range strings.Fields(string(text)) {
		switch {
		case i == 0:
			s.Version = word
		case word == "held":
			s.Held = true
		case word == "auto":
			s.Auto = true
		default:
			s.Broken = word
		}
	}

	return s
}

func (s State) String() converge.State {
	out := s.Version
	if s.Held {
		out += " held"
	}
	if s.Auto {
		out += " auto"
	}
	if s.Broken != "" {
		out += " " + s.Broken
	}
	return converge.State(out)
}

// Installed reports whether the package is installed, even if broken.
func (s State) Installed() bool {
	switch s.Version {
	case "", Nowhere, removed, ifOffered, ifNeeded:
		return false
	}
	return s.Broken != ConfigFiles
}

// whole reports whether the package is wholly installed.
func (s State) whole() bool { return s.Installed() && s.Broken == "" }

// open returns the group and pattern of an open version.
func (s State) open() (group, pattern string, ok bool) {
	group, pattern, ok = strings.Cut(s.Version, "=")
	return group, pattern, ok
}

// meets reports whether a package in state s has the version that the other state asks for, and is
// wholly installed.
func (s State) meets(wanted State) bool {
	if !s.whole() {
		return false
	}
	if _, pattern, ok := wanted.open(); ok {
		return Matches(pattern, s.Version)
	}
	return s.Version == wanted.Version
}

// marked returns s with the marks of the other.
func (s State) marked(as State) State {
	s.Held = as.Held
	s.Auto = as.Auto
	return s
}

// Own returns a package's own version, that is the version of the driver or toolkit in it, without
// the packager's epoch and revision. 3:580.95.05-1.el9 and 580.95.05-0ubuntu1 are both 580.95.05.
func Own(version string) string {
	version = Unepoched(version)
	if i := strings.LastIndexByte(version, '-'); i >= 0 {
		version = version[:i]
	}
	return version
}

// Unepoched returns a version without its epoch.
func Unepoched(version string) string {
	return version[strings.IndexByte(version, ':')+1:]
}

// Matches reports whether a package's version has the own version that a pattern asks for.
func Matches(pattern, version string) bool {
	own := Own(version)
	if pattern == "*" {
		return true
	}
	if start, ok := strings.CutSuffix(pattern, ".*"); ok {
		return own == start || strings.HasPrefix(own, start+".")
	}
	return own == pattern
}
