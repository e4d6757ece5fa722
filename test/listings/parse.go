// SPDX-License-Identifier: Apache-2.0

package listings

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	packageLine = regexp.MustCompile(`^([a-zA-Z0-9][a-zA-Z0-9+._{}*-]*) (\S+)(?: (all|noarch|amd64|arm64|x86_64|aarch64))?$`)
	aboutLine   = regexp.MustCompile(`^([a-z-]+): (\S+): (.+)$`)
	absentLine  = regexp.MustCompile(`^(?:absent|absent-from-pocket): (\S+)$`)
	drawsLine   = regexp.MustCompile(`^transitional: (\S+) -> (\S+)$`)
	seenLine    = regexp.MustCompile(`^(repository|pocket|release|install|part)(?: \(.+\))?$`)
	listingLine = regexp.MustCompile(`^([a-z0-9-]+) (nvidia|ubuntu|debian|amazon|microsoft|redhat|almalinux) (\S+?)(?:-(stable|security|backports))?$`)
)

// Parse reads one listing. A line that it does not know is an error that tells the line's number,
// from 1.
func Parse(text string) (Listing, error) {
	l := Listing{
		Depends: map[string]string{}, PreDepends: map[string]string{}, Provides: map[string]string{}, Component: map[string]string{},
		Transitional: map[string]string{}, FileConflicts: map[string]string{}, Conflicts: map[string]string{},
	}
	number := 0
	for line := range strings.Lines(text) {
		number++
		if err := l.line(number, strings.TrimSuffix(line, "\n")); err != nil {
			return Listing{}, fmt.Errorf("cannot read line %d: %w", number, err)
		}
	}

	if number < 3 {
		return Listing{}, errors.New("cannot find the three lines of the header: listing, source, seen")
	}
	return l, l.check()
}

func (l *Listing) line(number int, text string) error {
	if key := [...]string{"", "listing", "source", "seen"}; number < len(key) {
		value, ok := strings.CutPrefix(text, "# "+key[number]+": ")
		if !ok || strings.TrimSpace(value) == "" {
			return fmt.Errorf("%q is not \"# %s: …\"", text, key[number])
		}
		return l.head(number, value)
	}

	if note, ok := strings.CutPrefix(text, "# note: "); ok {
		l.Notes = append(l.Notes, note)
		return nil
	}
	if m := absentLine.FindStringSubmatch(text); m != nil {
		l.Absent = append(l.Absent, m[1])
		return nil
	}
	if m := drawsLine.FindStringSubmatch(text); m != nil {
		return set(l.Transitional, m[1], m[2])
	}
	if m := aboutLine.FindStringSubmatch(text); m != nil {
		about := map[string]map[string]string{
			"depends": l.Depends, "pre-depends": l.PreDepends, "provides": l.Provides, "component": l.Component,
			"conflict-of-files": l.FileConflicts, "conflict": l.Conflicts,
		}[m[1]]
		if about == nil {
			return fmt.Errorf("%q is not known", m[1])
		}
		return set(about, m[2], m[3])
	}

	m := packageLine.FindStringSubmatch(text)
	if m == nil {
		return fmt.Errorf("%q is neither a package nor a word on one", text)
	}
	p := Package{Name: m[1], Version: m[2], Arch: m[3]}
	if p.Version == "-" {
		p.Version = ""
	}
	if slices.Contains(l.Packages, p) {
		return fmt.Errorf("%s is there twice", p.Name)
	}
	l.Packages = append(l.Packages, p)
	return nil
}

func (l *Listing) head(number int, value string) error {
	switch number {
	case 1:
		m := listingLine.FindStringSubmatch(value)
		if m == nil {
			return fmt.Errorf("%q is not DISTRIBUTION REPOSITORY VERSION", value)
		}
		l.Distro, l.Repository, l.Version, l.Pocket = m[1], m[2], m[3], m[4]
	case 2:
		l.Source = value
	case 3:
		m := seenLine.FindStringSubmatch(value)
		if m == nil {
			return fmt.Errorf("%q does not begin with a scope", value)
		}
		l.Scope, l.Complete = Scope(m[1]), m[1] != string(Part)
	}
	return nil
}

func set(about map[string]string, name, value string) error {
	if _, is := about[name]; is {
		return fmt.Errorf("that was said of %s before", name)
	}
	about[name] = value
	return nil
}

// check wants all that is said of packages to be said of those in the listing.
func (l *Listing) check() error {
	if len(l.Packages) == 0 {
		return errors.New("cannot find a package in it")
	}
	there := map[string]bool{}
	for _, p := range l.Packages {
		there[p.Name] = true
	}
	for _, about := range []map[string]string{
		l.Depends, l.PreDepends, l.Provides, l.Component, l.Transitional, l.FileConflicts, l.Conflicts,
	} {
		for name := range about {
			if !there[name] {
				return fmt.Errorf("it tells of %s, which is not in it", name)
			}
		}
	}

	for _, name := range l.Absent {
		if there[name] {
			return fmt.Errorf("%s is there and absent", name)
		}
	}

	return nil
}
