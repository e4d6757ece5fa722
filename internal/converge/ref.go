// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"slices"
	"strings"
)

// A Ref names a Thing, and is what builds it again.
type Ref struct {
	Kind  string   `json:"kind"`
	Name  string   `json:"name"`
	Reads []string `json:"reads,omitempty"` // files that the thing depends on beside its name
	Form  string   `json:"form,omitempty"`  // in which form its bytes are, so that undo finds the same merger again
}

// String is the thing in two words.
func (r Ref) String() string { return r.Kind + " " + r.Name }

// key is what tells things apart, and can be compared. A thing in another form is the same thing.
type key struct{ kind, name, reads string }

func (r Ref) key() key { return key{r.Kind, r.Name, strings.Join(r.Reads, "\n")} }

// covers says that what is done for one is done for the other: the same thing, which reads all that the other reads.
func (r Ref) covers(o Ref) bool {
	return r.Kind == o.Kind && r.Name == o.Name && !slices.ContainsFunc(o.Reads, func(name string) bool { return !slices.Contains(r.Reads, name) })
}
