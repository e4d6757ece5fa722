// SPDX-License-Identifier: Apache-2.0

package things

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// keysKept is the folder of keys that gpuadm replaced or removed: undo restores them from there,
// since their owner may publish another now.
const keysKept = converge.Home + "/keys"

// keptName is the file in keysKept of a key with these fingerprints, or with this digest of its
// file.
func keptName(state string) string {
	return fmt.Sprintf("%s/%x", keysKept, sha256.Sum256([]byte(state)))
}

// statesOf are the states that a key's file may have: its fingerprints, and its digest; none if
// data is not a key.
func statesOf(data []byte) []string {
	found, err := fingerprints(data)
	if err != nil {
		return nil
	}
	return []string{strings.Join(found, " "), digest(data)}
}

// holds reports whether these are the bytes of the key that a state names.
func holds(data []byte, state string) bool {
	return slices.Contains(statesOf(data), state)
}

// keepKey copies the key in a file to keysKept; nothing if the file has no key.
func keepKey(h host.Host, file string) error {
	data, err := h.ReadFile(file)
	if err != nil && !host.NotExist(err) {
		return err
	}

	for _, state := range statesOf(data) {
		for _, dir := range []string{converge.Home, keysKept} {
			err := h.Mkdir(dir, host.Attr{Mode: 0o700})
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}

		if err := h.WriteFile(keptName(state), data, host.Attr{Mode: 0o600}); err != nil {
			return err
		}
	}

	return nil
}

// keptKey is the key in keysKept that a state names, and its file; nil if keysKept does not have
// it.
func keptKey(v host.View, state string) (file string, data []byte) {
	file = keptName(state)
	data, err := v.ReadFile(file)
	if err != nil || !holds(data, state) {
		return "", nil
	}
	return file, data
}

// KeyFile returns the file that has a key: the key's own file, or the one in keysKept if another
// key has replaced it; "" if neither has it.
func KeyFile(v host.View, file, trusted string) (name string, data []byte) {
	data, err := v.ReadFile(file)
	if err == nil && holds(data, trusted) {
		return file, data
	}
	return keptKey(v, trusted)
}

// PruneKeys removes the kept keys that none of the changes names. needed are the changes that can
// still be undone.
func PruneKeys(h host.Host, needed []converge.Change) error {
	names, err := h.ReadDir(keysKept)
	if host.NotExist(err) {
		return nil
	}

	keep := map[string]bool{}
	for _, c := range needed {
		keep[keptName(string(c.Before))] = true
		keep[keptName(string(c.After))] = true
		keep[keptName(c.Name)] = true // rpm's keys have their fingerprints in the name
	}

	for _, name := range names {
		file := path.Join(keysKept, name)
		if err == nil && !keep[file] {
			err = h.Remove(file)
		}
	}

	return err
}
