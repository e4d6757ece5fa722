// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"fmt"
	"slices"

	goversion "github.com/hashicorp/go-version"
)

// NewerThan returns the version of the gpuadm that changed the machine last, where it is newer than the given one; else "". A build
// without a release (devel, devel-COMMIT) has no order, and a compacted journal names no version: then both write.
func (j Journal) NewerThan(version string) string {
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

// older refuses the changes of a gpuadm that is older than the one that changed the machine last: an image's and a DaemonSet's would
// change them to and fro. A run that was cut short any version finishes, since the gate waits for it.
func (r *run) older() error {
	newer := r.j.NewerThan(r.Version)
	if newer == "" || r.open {
		return nil
	}
	return &Trouble{
		What:    fmt.Sprintf("cannot change this machine: gpuadm %s changed it last, and this is the older %s", newer, r.Version),
		Because: []string{nothingTouched},
		Try:     []string{"use gpuadm " + newer + " or a newer one; to return to this one: gpuadm undo, then gpuadm apply"},
	}
}
