// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/internal/host"
)

// prune removes what was kept for changes that no undo can revert any more. It removes nothing if
// lines of the journal are damaged, since they may need it. If it cannot remove a file, it reports
// that and continues: a copy too many is no reason to refuse an apply or an undo.
func (r *run) prune(ctx context.Context) {
	if len(r.journal.Damaged) > 0 || len(r.journal.Records) == 0 {
		return
	}

	var needed []Change
	for _, run := range r.journal.Runs() {
		if !run.settled() {
			needed = append(needed, run.Makes...)
		}
	}

	errs := r.pruneBlobs(needed)
	if r.engine.Prune != nil {
		errs = append(errs, r.engine.Prune(ctx, r.host, needed))
	}
	if err := host.Join(errs...); err != nil {
		text := fmt.Sprintf("cannot remove what no undo needs any more: %v", err)
		r.event(Event{What: Remains, Text: text})
	}
}

// pruneBlobs removes the blobs that no state of the changes names. A kind that this gpuadm does not
// know may need any of them.
func (r *run) pruneBlobs(needed []Change) (errs []error) {
	blobs, err := r.host.ReadDir(blobsFolder)
	if err != nil || len(blobs) == 0 {
		return nil
	}

	named := map[string]bool{}
	for _, c := range needed {
		t, err := r.engine.ThingOf(c.Ref)
		if err != nil {
			return nil
		}
		if stored, ok := t.(Stored); ok {
			named[stored.Digest(c.Before)] = true
			named[stored.Digest(c.After)] = true
		}
	}

	for _, sha := range blobs {
		isBlob := len(sha) == len(digest(nil))
		if isBlob && !named[sha] {
			errs = append(errs, r.host.Remove(path.Join(blobsFolder, sha)))
		}
	}

	return errs
}
