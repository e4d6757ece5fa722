// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

// Hosts names the hosts that exist, those of running tests as well.
func Hosts() ([]string, error) {
	hosts, err := hostsDir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(hosts)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot list hosts: %w", err)
	}

	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

func hostsDir() (string, error) {
	cache, err := CacheDir()
	return filepath.Join(cache, "hosts"), err
}

// lockHosts keeps another process from taking a host that is being made for one that was left.
func lockHosts() (unlock func(), err error) {
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	file, err := parts.Lock(filepath.Join(cache, ".hosts.lock"), syscall.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the hosts: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

// CleanHosts takes down what killed processes have left: hosts that no process uses and that were
// not kept.
func CleanHosts(log func(string)) error { return cleanHosts(log, leftover) }

// Clean takes down all hosts that no process uses, and removes the cache.
func Clean(log func(string)) error {
	if err := cleanHosts(log, func(string) bool { return true }); err != nil {
		return err
	}
	left, err := Hosts()
	if err != nil || len(left) > 0 {
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

// cleanHosts takes down those hosts that no process uses and that which picks.
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
		m, openErr := Open(name)
		if openErr != nil {
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
	r, err := readRecord(dir)
	return err != nil || !r.Kept
}

// goneHost begins the name, in the cache, of the folder of a host that is being removed.
const goneHost = ".gone-"

// removeGone ends what killed processes have begun: it removes folders of hosts that are half
// removed.
func removeGone() error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	removed, err := filepath.Glob(filepath.Join(cache, goneHost+"*"))
	for _, dir := range removed {
		unmountBelow(dir)
		// Another process may remove the same one, which harms neither.
		err = errors.Join(err, os.RemoveAll(dir))
	}

	return err
}

// unmountBelow takes away what a killed host had mounted in its folder, the innermost first. What it
// cannot take away the removal of the folder names.
func unmountBelow(dir string) {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	var below []string
	for line := range strings.Lines(string(mounts)) {
		words := strings.Fields(line) // proc(5): the fifth is the mount point
		if len(words) > 4 && strings.HasPrefix(words[4], dir+"/") {
			below = append(below, words[4])
		}
	}

	for _, where := range slices.Backward(below) {
		_ = syscall.Unmount(where, syscall.MNT_DETACH)
	}
}
