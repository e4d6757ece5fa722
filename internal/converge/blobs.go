// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path"

	"github.com/gpuadm/gpuadm/internal/host"
)

// Blob returns the bytes kept under a SHA-256 in hex.
func Blob(v host.View, sha string) ([]byte, error) {
	data, err := v.ReadFile(path.Join(Home, "blobs", sha))
	if err == nil && digest(data) != sha {
		err = fmt.Errorf("cannot use blob %s: its bytes have changed", sha)
	}
	return data, err
}

func digest(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// keep stores the bytes that the change's states name, before the journal names them.
func keep(h host.Host, t Thing, c Change) error {
	st, ok := t.(Stored)
	if !ok {
		return nil
	}
	missing := map[string][]byte{}
	for _, s := range []State{c.Before, c.After} {
		data, err := st.Bytes(h, s)
		if err != nil {
			return err
		}
		if data == nil {
			continue
		}
		sha := digest(data)
		if _, err := Blob(h, sha); err != nil {
			missing[sha] = data
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return h.WriteFiles(Home+"/blobs", missing, host.Attr{Mode: 0o600})
}

// prune removes what was kept for changes that no undo can revert any more; nothing if lines of the
// journal are damaged, since they may need it. If it cannot remove a file, it reports that and
// continues: a copy too many is no reason to refuse an apply or an undo.
func (r *run) prune(ctx context.Context) {
	if len(r.j.Damaged) > 0 || len(r.j.Records) == 0 {
		return
	}
	var needed []Change
	for _, run := range r.j.Runs() {
		if !run.settled() {
			needed = append(needed, run.Makes...)
		}
	}
	errs := r.pruneBlobs(needed)
	if r.Prune != nil {
		errs = append(errs, r.Prune(ctx, r.h, needed))
	}
	if err := host.Join(errs...); err != nil {
		r.event(Event{What: Remains, Text: fmt.Sprintf("cannot remove what no undo needs any more: %v", err)})
	}
}

// pruneBlobs removes the blobs that no state of the changes names. A kind that this gpuadm does not
// know may need any of them.
func (r *run) pruneBlobs(needed []Change) (errs []error) {
	blobs, err := r.h.ReadDir(Home + "/blobs")
	if err != nil || len(blobs) == 0 {
		return nil
	}
	named := map[string]bool{}
	for _, c := range needed {
		t, err := r.ThingOf(c.Ref)
		if err != nil {
			return nil
		}
		if st, ok := t.(Stored); ok {
			named[st.Digest(c.Before)], named[st.Digest(c.After)] = true, true
		}
	}
	for _, sha := range blobs {
		if len(sha) == len(digest(nil)) && !named[sha] {
			errs = append(errs, r.h.Remove(path.Join(Home, "blobs", sha)))
		}
	}
	return errs
}

// load has a Stored thing read the bytes that a state names; it fails if they are lost.
func load(v host.View, t Thing, s State) error {
	if st, ok := t.(Stored); ok {
		_, err := st.Bytes(v, s)
		return err
	}
	return nil
}
