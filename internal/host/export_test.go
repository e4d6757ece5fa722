// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

// LiveWithNVML is the running machine with another NVML, of which the module's version and the process's maps are in files.
func LiveWithNVML(library string, files *Files) Host {
	disk, err := openRoot("/")
	if err != nil {
		panic(err)
	}
	l := newLive(disk)
	if files == nil {
		files = l.Files
	}
	l.nvmlDoor = newNVML(files, library)
	return l
}

// FolderOf opens a folder of this machine as another process would.
func FolderOf(name string) (Folder, error) {
	disk, err := openRoot(name)
	if err != nil {
		return nil, err
	}
	return disk.Root()
}
