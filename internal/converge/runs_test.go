// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"slices"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestCutShort: a run that waits for a reboot is not cut short. An undo of it that was killed in
// the same boot is.
func TestCutShort(t *testing.T) {
	ref := converge.Ref{Kind: "block", Name: "a"}
	blue := &converge.Change{Ref: ref, After: "blue"}
	waits := []converge.Record{
		{What: "begin", Run: "first"},
		{What: "make", Run: "first", Change: blue},
		{What: "reboot", Run: "first", Boot: "today", Change: blue},
	}
	_, cut := converge.Journal{Records: waits}.CutShort("today")
	check.That(t, !cut, "a run that waits for a reboot counts as cut short")

	killed := slices.Concat(waits, []converge.Record{
		{What: "end", Run: "first", Result: "overtaken"},
		{What: "begin", Run: "undo", Undoes: []string{"first"}},
		{What: "make", Run: "undo", Change: &converge.Change{Ref: ref, Before: "blue"}},
	})
	run, _ := converge.Journal{Records: killed}.CutShort("today")
	check.Equal(t, run.ID, "undo", "cut short:")
}
