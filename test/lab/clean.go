// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// CleanHosts takes down what killed processes have left: hosts that no process uses and that were not kept.
func CleanHosts(log func(string)) error { return cleanHosts(log, leftover) }

// Clean takes down all hosts that no process uses, and removes the cache.
func Clean(log func(string)) error {
	if err := cleanHosts(log, func(string) bool { return true }); err != nil {
		return err
	}
	if left, err := Hosts(); err != nil || len(left) > 0 {
		return errors.Join(err, fmt.Errorf("cannot remove the caches: %v are in use", left))
	}
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(cache)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		log("removing " + e.Name())
		err = errors.Join(err, os.RemoveAll(filepath.Join(cache, e.Name())))
	}
	return err
}

func cleanHosts(log func(string), which func(dir string) bool) error {
	names, err := Hosts()
	if err != nil || len(names) == 0 {
		return err
	}
	unlock, err := lockHosts()
	if err != nil {
		return err
	}
	defer unlock()
	if err := removeGone(); err != nil {
		return err
	}
	for _, name := range names {
		m, oerr := Open(name)
		if oerr != nil {
			continue // in use
		}
		if !which(m.dir) {
			_ = m.lock.Close()
			continue
		}
		log("taking down " + name)
		err = errors.Join(err, m.Down())
	}
	return err
}

// leftover says whether a host was not kept.
func leftover(dir string) bool {
	var r record
	text, err := os.ReadFile(filepath.Join(dir, recordFile))
	return err != nil || json.Unmarshal(text, &r) != nil || !r.Kept
}

// removeGone ends what processes were killed at: hosts of which the folder was left half removed.
func removeGone() error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	removed, err := filepath.Glob(filepath.Join(cache, goneHost+"*"))
	for _, dir := range removed {
		err = errors.Join(err, os.RemoveAll(dir)) // another process may be at the same one, which harms neither
	}
	return err
}
