// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Environment is the same however gpuadm was called: over SSH, by a unit, in a pod. Only the
// proxies are taken from the caller.
func Environment() []string {
	env := []string{
		"PATH=" + searchPath,
		"LC_ALL=C",                       // messages and numbers as programs expect them
		"HOME=/root",                     // gpg, helm and others fail without one
		"DEBIAN_FRONTEND=noninteractive", // debconf must not ask: debconf(7)
	}
	for _, name := range []string{
		"http_proxy", "https_proxy", "no_proxy",
		"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
	} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}

	return env
}

// lookPath finds a program on gpuadm's own search path, not on the caller's. A folder that cannot
// be looked into may have the program.
func (r Runner) lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}

	missing := fmt.Errorf("it is not installed: %w", fs.ErrNotExist)
	for _, dir := range strings.Split(searchPath, ":") {
		file := filepath.Join(dir, name)
		mode, err := r.Mode(file)
		switch {
		case err == nil && mode.IsRegular() && mode&0o111 != 0:
			return file, nil
		case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		default:
			missing = fmt.Errorf("cannot look for it: %w", err)
		}
	}

	return "", missing
}
