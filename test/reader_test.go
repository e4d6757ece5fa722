// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
)

// reader is a thing with files that belong to its identity.
type reader struct{ pkgThing }

func (r reader) Ref() converge.Ref {
	return converge.Ref{Kind: "reader", Name: r.name, Reads: []string{"/etc/d.conf"}}
}

// TestReaderIsRecognized: what gpuadm has made of a thing that reads files is known as that of the want.
func TestReaderIsRecognized(t *testing.T) {
	n := node(t)
	first := n.Tree(converge.Home, "/srv")
	e := engineOf(t, stage(converge.Want{Thing: reader{pkgThing{"key"}}, To: to("1")}))
	e.ThingOf = func(ref converge.Ref) (converge.Thing, error) {
		if ref.Kind == "reader" && len(ref.Reads) == 1 {
			return reader{pkgThing{ref.Name}}, nil
		}
		return kinds(ref)
	}
	apply(t, n, e)
	if res := apply(t, n, e); res.Run != "" {
		t.Errorf("the second apply made %v", res.Made)
	}
	undo(t, n, e, "")
	compare(t, "undone", first, n.Tree(converge.Home, "/srv"))
}
