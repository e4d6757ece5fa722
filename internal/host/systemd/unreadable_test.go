// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// damaged is a disk on which one name cannot be read.
type damaged struct {
	files.Disk
	name string
}

func (d damaged) Root() (files.Folder, error) {
	root, err := d.Disk.Root()
	return damagedFolder{root, d.name}, err
}

type openFolder = files.Folder

type damagedFolder struct {
	openFolder
	name string
}

func (d damagedFolder) Folder(name string) (files.Folder, error) {
	if name == d.name {
		return nil, syscall.EIO
	}
	below, err := d.openFolder.Folder(name)
	return damagedFolder{below, d.name}, err
}

func (d damagedFolder) Open(name string) (files.File, error) {
	if name == d.name {
		return nil, syscall.EIO
	}
	return d.openFolder.Open(name)
}

// damagedFiles are the files of a folder with one unit, of which one name cannot be read.
func damagedFiles(t *testing.T, name string) *files.Files {
	t.Helper()
	root := t.TempDir()
	units := filepath.Join(root, "etc/systemd/system")
	must.OK(t, os.MkdirAll(units, 0o755))
	must.OK(t, os.MkdirAll(filepath.Join(root, "run/systemd/system"), 0o755))
	must.OK(t, os.WriteFile(filepath.Join(units, "x.service"), []byte("[Service]\nExecStart=/bin/true\n"), 0o644))
	disk := must.Get(files.OpenRoot(root))(t)
	return files.New(damaged{disk, name})
}

// TestUnreadableUnit: a unit whose file cannot be read is not a unit with a wrong file.
func TestUnreadableUnit(t *testing.T) {
	u, err := UnitOf(damagedFiles(t, "x.service"), "x.service")
	check.That(t, errors.Is(err, syscall.EIO), "%+v, %v", u, err)
}

// TestUnreadableInit: where it cannot be read whether systemd runs, nothing is deferred until it does.
func TestUnreadableInit(t *testing.T) {
	s := New(damagedFiles(t, "run"))
	_, err := s.Unit(t.Context(), "x.service")
	check.That(t, errors.Is(err, syscall.EIO), "a look: %v", err)
	for _, change := range []host.UnitChange{{File: "enable"}, {Job: "start"}} {
		err := s.Set(t.Context(), "x.service", change)
		check.That(t, errors.Is(err, syscall.EIO), "%+v: %v", change, err)
	}
}
