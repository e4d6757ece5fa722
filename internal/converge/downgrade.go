// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"fmt"
	"slices"

	"github.com/gpuadm/gpuadm/internal/trouble"
	goversion "github.com/hashicorp/go-version"
)

// downgrade is the break that allows an older gpuadm to change what a newer one has changed.
const downgrade = "downgrade-gpuadm"

// LeavesTo returns the newer gpuadm that changed the machine last, if this one must leave the
// machine to it; "" if this one may change it. Otherwise an image's gpuadm and a DaemonSet's would
// revert each other's changes. Any version finishes a run that was cut short, since the gate waits
// for that run; but this one cannot write to a journal of a newer format.
func (e *Engine) LeavesTo(j Journal) string {
	_, open := j.unfinished()
	if j.Newer == 0 && (open || e.allows(downgrade)) {
		return ""
	}
	return j.NewerThan(e.Version)
}

// NewerThan returns the version of the gpuadm that changed the machine last if that is newer than
// the given one; else "". A version that is not a release (devel, devel-COMMIT) cannot be compared,
// and a compacted journal names no version: then either gpuadm may write. A journal of a newer
// format was written by a newer gpuadm, whatever its version says.
func (j Journal) NewerThan(version string) string {
	if j.Newer > 0 {
		return fmt.Sprintf("of journal format %d", j.Newer)
	}
	mine, err := goversion.NewVersion(version)
	if err != nil {
		return ""
	}

	for _, r := range slices.Backward(j.Records) {
		if r.What != "begin" {
			continue
		}
		last, err := goversion.NewVersion(r.Tool)
		if err == nil && last.GreaterThan(mine) {
			return r.Tool
		}
		return ""
	}

	return ""
}

// refuseDowngrade refuses an operator's apply if a newer gpuadm changed the machine last. mayWrite
// refuses a journal of a newer format.
func (r *run) refuseDowngrade() error {
	newer := r.engine.LeavesTo(r.journal)
	if newer == "" || r.journal.Newer > 0 {
		return nil
	}

	return &trouble.Error{
		What:   fmt.Sprintf("cannot change this machine: gpuadm %s changed it last, and this is the older %s", newer, r.engine.Version),
		Undone: []string{trouble.NothingTouched},
		Try: []string{
			"use gpuadm " + newer + " or a newer one",
			"to return to the older one, run again with --allow " + downgrade,
		},
	}
}
