// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

// CacheDir is the folder of root filesystems and hosts: $GPUADM_TEST_LAB, or gpuadm-test/lab in the
// user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("GPUADM_TEST_LAB"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("cannot resolve GPUADM_TEST_LAB: %w", err)
		}
		return abs, nil
	}

	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cannot find the user's cache folder: %w", err)
	}
	return filepath.Join(dir, "gpuadm-test", "lab"), nil
}

// Cached makes a folder of the cache once, all or nothing, also with several processes at it: build
// fills a scratch folder next to it, which is then renamed.
func Cached(place string, build func(scratch string) error) error {
	dir, name := filepath.Split(place)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot make the cache folder: %w", err)
	}
	if exists(place) {
		return nil
	}

	lock, err := parts.Lock(filepath.Join(dir, "."+name+".lock"), syscall.LOCK_EX)
	if err != nil {
		return fmt.Errorf("cannot lock the cache entry: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if exists(place) { // another process was faster
		return nil
	}

	// This process holds the lock, so a scratch folder that exists is of a process that was killed.
	scratch := filepath.Join(dir, "."+name)
	if err := os.RemoveAll(scratch); err != nil {
		return fmt.Errorf("cannot clear the scratch folder: %w", err)
	}
	if err := os.Mkdir(scratch, 0o755); err != nil {
		return fmt.Errorf("cannot make the scratch folder: %w", err)
	}
	if err := build(scratch); err != nil {
		return errors.Join(err, os.RemoveAll(scratch))
	}
	if err := os.Rename(scratch, place); err != nil {
		return fmt.Errorf("cannot put the cache entry in place: %w", err)
	}
	return nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// Lock takes an exclusive lock on a file, which ends with the process at the latest. how is 0 or
// LOCK_NB.
func Lock(path string, how int) (*os.File, error) {
	return parts.Lock(path, syscall.LOCK_EX|how)
}
