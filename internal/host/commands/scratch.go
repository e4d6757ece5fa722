// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"golang.org/x/sys/unix"
)

const (
	ScratchParent = "/run"
	scratchPrefix = "gpuadm-ask-"
)

// InScratch returns argv with the scratch folder's name.
func InScratch(argv []string, dir string) []string {
	asked := make([]string, len(argv))
	for i, a := range argv {
		asked[i] = strings.ReplaceAll(a, host.Scratch, dir)
	}
	return asked
}

// ScratchFolder returns the folder in which scratch folders are made: /run is in memory and empty
// after a boot, so a killed gpuadm leaves nothing for long. Only root may write there.
func ScratchFolder() string {
	if os.Geteuid() != 0 {
		return os.TempDir()
	}
	return ScratchParent
}

// WriteScratch writes files into a new folder that only this user can read, and replaces Scratch in
// their text by the folder's name. The folder is locked while it is in use: an unlocked one is left
// of a gpuadm that was killed. Programs whose root folder is root find the folder by the name that
// WriteScratch returns. The caller removes it with drop.
func WriteScratch(parent, root string, files map[string][]byte) (name string, drop func(), err error) {
	dir, err := os.MkdirTemp(parent, scratchPrefix)
	if err != nil {
		return "", nil, err
	}
	lock, err := os.Open(dir)
	drop = func() {
		os.RemoveAll(dir)
		lock.Close()
	}

	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	name = strings.TrimPrefix(dir, root)
	if err == nil {
		err = writeIn(dir, name, files)
	}
	if err != nil {
		drop()
		return "", nil, err
	}
	return name, drop, nil
}

// writeIn writes files below a folder. Their text knows the folder by the name scratch.
func writeIn(dir, scratch string, files map[string][]byte) error {
	in, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer in.Close()

	for name, data := range files {
		name = strings.TrimPrefix(name, "/")
		if err := in.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		text := strings.ReplaceAll(string(data), host.Scratch, scratch)
		if err := in.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}

	return nil
}

// SweepScratch removes the scratch folders of runs that were killed.
func SweepScratch(parent string) {
	left, _ := filepath.Glob(filepath.Join(parent, scratchPrefix+"*"))
	for _, dir := range left {
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			os.RemoveAll(dir)
		}
		f.Close()
	}
}
