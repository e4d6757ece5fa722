// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// A Solver answers for one packager while one request is resolved.
type Solver interface {
	Packager
	// Offers returns the versions that repositories have, newest first: see Newest.
	Offers(ctx context.Context, v host.View, names []string) (map[string][]Offer, error)
	// Compare orders versions as the packager does.
	Compare(a, b string) int
	// Hidden returns an error if repositories have the packages and the packager's settings hide
	// them; else nil.
	Hidden(
		ctx context.Context,
		v host.View,
		what, pattern string,
		members []string,
		seen map[string][]Offer,
	) error
	// Simulate returns what the packager would do for changes. Where it has pins, these count
	// before those on disk.
	Simulate(
		ctx context.Context,
		v host.View,
		changes []converge.Change,
		offers map[string][]Offer,
		pins []Pin,
	) ([]Move, error)
	// Unneeded returns what was installed for others, and what nothing needs once the changes are
	// made, whether it is held or not. That a candidate is among the changes is no reason to keep it.
	// What is no candidate may be missing.
	Unneeded(
		ctx context.Context,
		v host.View,
		changes []converge.Change,
		candidates map[string]bool,
		offers map[string][]Offer,
		pins []Pin,
	) ([]string, error)
	// Without returns the state of a package after its removal.
	Without(v host.View, name string) converge.State
	// Essential reports whether the machine cannot work without a package.
	Essential(name string) bool
	// Words are the packager's own.
	Words() Words
}

// Words are one packager's terms, for messages.
type Words struct {
	Source  string // source, repository
	Refresh string // the command that reads lists again
	Show    string // the command that simulates what follows: install, remove
	At      string // between a package's name and version on its command line
}

// A Move is one package that a packager would change.
type Move struct {
	Name    string
	Version string // "" = removed
}
