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

// InScratch is argv with the scratch folder's name.
func InScratch(argv []string, dir string) []string {
	asked := make([]string, len(argv))
	for i, a := range argv {
		asked[i] = strings.ReplaceAll(a, host.Scratch, dir)
	}
	return asked
}

// ScratchFolder is where scratch folders lie: /run is in memory and gone after a boot, so a killed
// gpuadm leaves nothing for long. Only root may write there.
func ScratchFolder() string {
	if os.Geteuid() != 0 {
		return os.TempDir()
	}
	return ScratchParent
}

// LayScratch lays files into a folder that only we can read; wherever their text has Scratch it is
// that folder. It is locked while it is in use: an unlocked folder was left behind by a gpuadm that
// was killed. Programs whose root folder is root find it by the name that is returned.
func LayScratch(parent, root string, files map[string][]byte) (name string, drop func(), err error) {
	var dir string
	if dir, err = os.MkdirTemp(parent, scratchPrefix); err != nil {
		return "", nil, err
	}

	lock, err := os.Open(dir)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	drop = func() {
		os.RemoveAll(dir)
		lock.Close()
	}
	defer func() {
		if err != nil {
			drop()
		}
	}()
	if err != nil {
		return "", drop, err
	}

	in, err := os.OpenRoot(dir)
	if err != nil {
		return "", drop, err
	}
	defer in.Close()
	for name, data := range files {
		name := strings.TrimPrefix(name, "/")
		if err := in.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return "", drop, err
		}
		text := strings.ReplaceAll(string(data), host.Scratch, strings.TrimPrefix(dir, root))
		if err := in.WriteFile(name, []byte(text), 0o600); err != nil {
			return "", drop, err
		}
	}

	return strings.TrimPrefix(dir, root), drop, nil
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
