// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package things

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// keysKept is the folder of keys that were replaced or removed: undo restores them though their owner publishes another by then.
const keysKept = converge.Home + "/keys"

// keptName is the file that is kept of a key, by its fingerprints or by its file's digest.
func keptName(state string) string {
	return fmt.Sprintf("%s/%x", keysKept, sha256.Sum256([]byte(state)))
}

// namesOf are a key's fingerprints, and the digest of its file; none of what is no key.
func namesOf(data []byte) []string {
	found, err := fingerprints(data)
	if err != nil {
		return nil
	}
	return []string{strings.Join(found, " "), digest(data)}
}

// holds says whether a key file is what a state names.
func holds(data []byte, state string) bool {
	for _, name := range namesOf(data) {
		if name == state {
			return true
		}
	}
	return false
}

// keepKey keeps the key in a file, as far as it is one.
func keepKey(h host.Host, file string) error {
	data, err := h.ReadFile(file)
	if err != nil && !host.NotExist(err) {
		return err
	}
	for _, name := range namesOf(data) {
		for _, dir := range []string{converge.Home, keysKept} {
			if err := h.Mkdir(dir, host.Attr{Mode: 0o700}); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		if err := h.WriteFile(keptName(name), data, host.Attr{Mode: 0o600}); err != nil {
			return err
		}
	}
	return nil
}

// keptKey is a key that was replaced, and its file; nil if none is kept.
func keptKey(v host.View, state string) (file string, data []byte) {
	file = keptName(state)
	data, err := v.ReadFile(file)
	if err != nil || !holds(data, state) {
		return "", nil
	}
	return file, data
}

// KeyFile is where a key is: in its file or, where that has another one by now, where it is kept; "" if it is in neither.
func KeyFile(v host.View, file, trusted string) (name string, data []byte) {
	if data, err := v.ReadFile(file); err == nil && holds(data, trusted) {
		return file, data
	}
	return keptKey(v, trusted)
}

// TakeOut tells a key by its fingerprint or by its file's digest, whichever the journal has: what the spec trusts one key by says
// nothing of how it trusted the one before.
func (k key) TakeOut(v host.View, found, before, after converge.State) (rest converge.State, left []string, err error) {
	if _, data := KeyFile(v, k.file, string(found)); !holds(data, string(after)) {
		return "", nil, fmt.Errorf("cannot undo %s: it was changed outside gpuadm since: left as %q, found as %q", k.Ref(), after, found)
	}
	return before, nil, nil
}

// PruneKeys removes the keys that none of the changes names. needed is what undo may still roll back.
func PruneKeys(h host.Host, needed []converge.Change) error {
	names, err := h.ReadDir(keysKept)
	if host.NotExist(err) {
		return nil
	}
	keep := map[string]bool{}
	for _, c := range needed {
		for _, state := range []string{string(c.Before), string(c.After), c.Name} { // rpm's keys have it in their name
			keep[keptName(state)] = true
		}
	}
	for _, name := range names {
		if file := path.Join(keysKept, name); err == nil && !keep[file] {
			err = h.Remove(file)
		}
	}
	return err
}
