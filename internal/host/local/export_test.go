// SPDX-License-Identifier: Apache-2.0

package local

import (
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/nvml"
)

// LiveWithNVML is the running machine with another NVML, of which the module's version and the
// process's maps are in files.
func LiveWithNVML(library string, of *files.Files) host.Host {
	disk, err := files.OpenRoot("/")
	if err != nil {
		panic(err)
	}
	l := newLive(disk, nil)
	if of == nil {
		of = l.Files
	}
	l.NVML = nvml.New(of, library)
	return l
}

// FolderOf opens a folder of this machine as another process would.
func FolderOf(name string) (files.Folder, error) {
	disk, err := files.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	return disk.Root()
}
