// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"fmt"
	"slices"

	goversion "github.com/hashicorp/go-version"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// downgrade allows an older gpuadm to change what a newer one has changed.
const downgrade = "downgrade-gpuadm"

// NewerThan returns the version of the gpuadm that changed the machine last, where it is newer than the given one; else "". A build
// without a release (devel, devel-COMMIT) has no order, and a compacted journal names no version: then both write. A journal of a newer
// format is a newer gpuadm's, of whatever version.
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
		if last, err := goversion.NewVersion(r.Tool); err == nil && last.GreaterThan(mine) {
			return r.Tool
		}
		return ""
	}
	return ""
}

// LeavesTo returns the newer gpuadm that changed the machine last and to which this one leaves it; "" if this one may change it. Without
// that an image's gpuadm and a DaemonSet's would change the machine to and fro. A run that was cut short any version finishes, since the
// gate waits for it; but not where the journal's format is newer, since nothing can be journaled there.
func (e *Engine) LeavesTo(j Journal) string {
	allowed := slices.Contains(e.Spec.Disruption.Allow, downgrade) || slices.Contains(e.Allow, downgrade) || slices.Contains(e.Allow, "all")
	if _, open := j.unfinished(); j.Newer == 0 && (open || allowed) {
		return ""
	}
	return j.NewerThan(e.Version)
}

// older refuses the changes of an operator's gpuadm that is older than the one that changed the machine last.
func (r *run) older() error {
	newer := r.LeavesTo(r.j)
	if newer == "" || r.j.Newer > 0 { // mayWrite refuses the newer format
		return nil
	}
	return &trouble.Error{
		What:    fmt.Sprintf("cannot change this machine: gpuadm %s changed it last, and this is the older %s", newer, r.Version),
		Because: []string{nothingTouched},
		Try:     []string{"use gpuadm " + newer + " or a newer one", "to return to the older one, run again with --allow " + downgrade},
	}
}
