// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// State is the state of one package. Its text is "VERSION[ held][ auto][ BROKEN]"; the zero State, "", is not installed.
//
// A version wanted may be left open: "GROUP=PATTERN", where PATTERN is a driver's or toolkit's own version ("580.95.05"),
// or a beginning of one that ends in ".*" ("580.*"), or "*". All members of a group get the same version of their own,
// the newest that each of them has a candidate for. "removed" is an open state too: what then remains of the package
// (its configuration, or nothing) is for the packager to say. Resolve closes what was left open.
type State struct {
	Version string // as the packager writes it, epoch and revision included: 3:580.95.05-1.el9, 580.95.05-0ubuntu1
	Held    bool   // held by apt-mark, locked by dnf versionlock
	Auto    bool   // installed for others' sake; apt only: dnf keeps that to itself
	Broken  string // "", half-configured, half-installed, unpacked, triggers-awaited, …: dpkg's words; config-files: removed
}

const (
	removed     = "removed"      // as a Version: not to be installed, whatever remains
	Nowhere     = "-"            // as a Version: not installed, but held so
	ConfigFiles = "config-files" // as Broken: removed, its configuration remains
)

// Parse reads what String wrote.
func Parse(s converge.State) State {
	var st State
	for i, w := range strings.Fields(string(s)) {
		switch {
		case i == 0:
			st.Version = w
		case w == "held":
			st.Held = true
		case w == "auto":
			st.Auto = true
		default:
			st.Broken = w
		}
	}
	return st
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

// Installed says whether the package is there, be it broken.
func (s State) Installed() bool {
	return s.Version != "" && s.Version != Nowhere && s.Version != removed && s.Broken != ConfigFiles
}

// open returns the group and pattern of a version that was left open.
func (s State) open() (group, pattern string, ok bool) {
	group, pattern, ok = strings.Cut(s.Version, "=")
	return group, pattern, ok
}

// meets says whether a package in state s has the version that the other state asks for, and is whole.
func (s State) meets(wanted State) bool {
	if !s.Installed() || s.Broken != "" {
		return false
	}
	if _, pattern, ok := wanted.open(); ok {
		return Matches(pattern, s.Version)
	}
	return s.Version == wanted.Version
}

// marked returns s with the marks of the other.
func (s State) marked(as State) State {
	s.Held, s.Auto = as.Held, as.Auto
	return s
}

// Own returns a package's own version: that of the driver or toolkit in it, without the packager's epoch and revision.
// 3:580.95.05-1.el9 and 580.95.05-0ubuntu1 are both 580.95.05.
func Own(version string) string {
	if _, after, ok := strings.Cut(version, ":"); ok {
		version = after
	}
	if i := strings.LastIndexByte(version, '-'); i >= 0 {
		version = version[:i]
	}
	return version
}

// Matches says whether a package's version has the own version that a pattern asks for.
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
