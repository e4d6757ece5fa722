// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
)

// self returns the word by which an operator can run this program again with sudo: "gpuadm" where
// sudo finds it by that name, else a path. argv0 is the word by which it was run, file is the
// program's own, and sudoers the text of /etc/sudoers, "" if it cannot be read.
//
// RHEL's sudo has no /usr/local/sbin in its secure_path, and there apply --install puts its copy.
// Sources: secure_path in https://www.sudo.ws/docs/man/sudoers.man/, and /etc/sudoers of RHEL 9 and
// its rebuilds: "Defaults secure_path = /sbin:/bin:/usr/sbin:/usr/bin".
func self(argv0, file, sudoers string) string {
	const name = "gpuadm"
	at := argv0
	if !strings.Contains(argv0, "/") {
		at = file
	}

	isTypedName := filepath.Base(at) == name
	if isTypedName && slices.Contains(sudoPath(sudoers), filepath.Dir(at)) {
		return name
	}
	return at
}

var securePath = pattern.Of(`(?m)^\s*Defaults\s+secure_path\s*=\s*"?([^"\n]+?)"?\s*$`)

// sudoPath returns the folders in which sudo looks for a program.
func sudoPath(sudoers string) []string {
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" // as Debian's
	if said := securePath().FindAllStringSubmatch(sudoers, -1); said != nil {
		path = said[len(said)-1][1] // the last one counts
	}
	return strings.Split(path, ":")
}

// ownSelf is self for this process.
func ownSelf() string {
	sudoers, _ := os.ReadFile("/etc/sudoers") // only root reads it
	file, err := os.Executable()
	if err != nil {
		return "gpuadm"
	}
	return self(os.Args[0], file, string(sudoers))
}
