// SPDX-License-Identifier: Apache-2.0

// Package drivertest has what the tests of the driver's packages share: simulated machines, files
// of kernel modules, and the problems that checks find.
package drivertest

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/kmodule"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Node is a simulated machine.
func Node(t *testing.T, archive string) *simhost.Node {
	t.Helper()
	return must.Get(simhost.New([]byte(archive)))(t)
}

// ModuleFile is a kernel module in a machine's archive.
func ModuleFile(path, version, license, kernel string) string {
	return File(path, kmodule.Nvidia(version, license, kernel))
}

// File is a file of any bytes in a machine's archive.
func File(path string, data []byte) string {
	return "-- " + path + " base64 --\n" + base64.StdEncoding.EncodeToString(data) + "\n"
}

// Problems are what the checks among wants find on a machine.
func Problems(t *testing.T, wants []converge.Want, v host.View) string {
	t.Helper()
	var found []string
	for _, w := range wants {
		if w.Ref().Kind != "check" {
			continue
		}
		state, err := w.Look(t.Context(), v)
		must.That(t, err == nil, "%v: %v", w.Ref().Name, err)
		if _, err := w.To(state); err != nil {
			found = append(found, err.Error())
		}
	}

	return strings.Join(found, "\n")
}

// Changes says of a simulated program that it changes the machine, whatever its arguments are.
func Changes([]string) bool { return false }

// Lay writes a file, with the folders on the way to it.
func Lay(f *files.Files, name string, data []byte) error {
	if err := Folders(f, path.Dir(name)); err != nil {
		return err
	}
	return f.WriteFile(name, data, host.Attr{Mode: 0o644})
}

// Folders makes a folder, with those on the way to it.
func Folders(f *files.Files, dir string) error {
	if _, err := f.Stat(dir); dir == "/" || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := Folders(f, path.Dir(dir)); err != nil {
		return err
	}
	return f.Mkdir(dir, host.Attr{Mode: 0o755})
}
