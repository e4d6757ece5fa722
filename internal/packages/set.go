// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"sync"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Set is shared by all packages that a stage wants: it has one reading of the packager's database,
// and says which packages belong together.
type Set struct {
	*Reading

	// Reads are gpuadm's files that the packager makes its lists from: until they are read again,
	// the available versions are unknown.
	Reads []string
	// Hold is the content that these files must have, as far as it is known: until they have it,
	// the lists are stale.
	Hold map[string][]byte
	// Stream is the stream of dnf's module nvidia-driver that the packages are in; "" where there
	// are not streams.
	Stream string
	// Family is what the packages are part of, and must have one version; nil: they are not.
	Family *Family
	// AsFound are packages that may stay in the state found.
	AsFound []string
	// IfThere are packages to leave out if no source has them.
	IfThere []string
	// Lacks may be missing: how an operator enables them is added to errors about packages.
	Lacks []Lack

	wanted map[string]State

	mu      sync.Mutex
	splits  map[string]bool // by group: a cache, since every wanted package asks
	edition int             // of the database that splits were read from
}

// NewSet returns a set for the packages of one stage.
func NewSet(read *Reading) *Set { return &Set{Reading: read, wanted: map[string]State{}} }

// wants reports whether the spec asks for an installed package, or for the family that it is part
// of.
func (s *Set) wants(name, version string) bool {
	_, asked := s.wanted[name]
	return asked || s.Family.Has(name, version)
}

// ready returns nil if the packager knows the available versions.
func (s *Set) ready(ctx context.Context, v host.View) error {
	if !v.Runs() {
		return host.FirstBoot
	}
	if len(s.Reads) == 0 {
		return nil
	}

	listsUnread := host.Later{Until: "once the package lists are read"}
	for _, name := range s.Reads {
		if _, err := v.Stat(name); errors.Is(err, fs.ErrNotExist) {
			return listsUnread
		}
		want, known := s.Hold[name]
		if !known {
			continue
		}
		data, err := v.ReadFile(name)
		if err != nil || !bytes.Equal(data, want) {
			return host.Join(err, listsUnread)
		}
	}

	state, err := NewLists(facts.PackagerOf(v).Name, s.Reads, s.Reading).Look(ctx, v)
	if err == nil && state == stale {
		err = listsUnread
	}
	return err
}

// versions returns, by group, the own version of the members that are not among the changes.
func (s *Set) versions(all map[string]State, changes []converge.Change) map[string]string {
	own := map[string]string{}
	for name, wanted := range s.wanted {
		group, _, isOpen := wanted.open()
		if isOpen && indexOf(changes, name) < 0 && all[name].meets(wanted) {
			own[group] = Own(all[name].Version)
		}
	}

	if s.Family != nil && own[s.Family.Group] == "" {
		own[s.Family.Group] = s.sharedVersion(all)
	}
	return own
}

// sharedVersion returns the version that all packages of the family share which the spec asks for,
// if the spec allows that version: then the other packages of the family follow it. "" if they have
// several.
func (s *Set) sharedVersion(all map[string]State) (shared string) {
	for name, wanted := range s.wanted {
		group, _, isOpen := wanted.open()
		if !isOpen || group != s.Family.Group {
			continue
		}
		own := Own(all[name].Version)
		differs := shared != "" && shared != own
		if differs || !all[name].meets(wanted) {
			return ""
		}
		shared = own
	}
	return shared
}

// split reports whether the installed members of a group, with the rest of its family, had several
// own versions at the last reading, or one of the family was not wholly installed: each may meet
// the spec, and still they do not work together.
func (s *Set) split(group string) bool {
	all, edition := s.last()
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.splits == nil || s.edition != edition {
		s.splits = map[string]bool{}
		s.edition = edition
	}
	if _, known := s.splits[group]; !known {
		s.splits[group] = s.splitIn(group, all)
	}
	return s.splits[group]
}

func (s *Set) splitIn(group string, all map[string]State) bool {
	shared := ""
	differs := func(found State) bool {
		own := Own(found.Version)
		if shared == "" {
			shared = own
		}
		return own != shared
	}

	for name, wanted := range s.wanted {
		of, _, isOpen := wanted.open()
		if !isOpen || of != group {
			continue
		}
		if found := all[name]; found.Installed() && differs(found) {
			return true
		}
	}

	if s.Family == nil || s.Family.Group != group || shared == "" {
		return false
	}
	for name, found := range all {
		part := found.Installed() && s.Family.Has(name, found.Version)
		if part && (found.Broken != "" || differs(found)) {
			return true
		}
	}

	return false
}

// advised adds to an error about packages how an operator enables what they lack.
func (s *Set) advised(err error) error {
	var t *trouble.Error
	if len(s.Lacks) == 0 || !errors.As(err, &t) {
		return err
	}
	if errors.As(err, new(*Locked)) || errors.Is(err, ErrExcluded) {
		return err // another repository does not help
	}

	advised := *t
	advised.Try = nil
	for _, l := range s.Lacks {
		if !l.Enabled {
			advised.Try = append(advised.Try, "enable "+l.Name+", which the driver's packages depend on: "+l.Try)
		}
	}

	advised.Try = append(advised.Try, t.Try...)
	return &advised
}

// ErrExcluded reports packages that the packager's own configuration excludes: another repository
// does not help.
var ErrExcluded = errors.New("excluded by the packager's configuration")
