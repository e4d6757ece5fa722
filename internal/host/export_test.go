// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

// LiveWithNVML is the running machine with another NVML, of which the module's version and the process's maps are in files.
func LiveWithNVML(library string, files *Files) Host {
	l := newLive(diskAt("/"))
	if files == nil {
		files = l.Files
	}
	l.nvmlDoor = &nvmlDoor{files: files, libraries: []string{library}}
	return l
}

// What the tests look into.
var (
	Printable    = printable
	WithWords    = withWords
	ResetCommand = resetCommand
)

// Because is what the door says of a code that NVML's initialisation returns.
func Because(files *Files, code string) *NoDriver { return newNVML(files).because(code) }

// FolderOf opens a folder of this machine as another process would.
func FolderOf(name string) (Folder, error) { return diskAt(name).Root() }

// diskAt is the disk below a folder that is there.
func diskAt(name string) realDisk {
	disk, err := openRoot(name)
	if err != nil {
		panic(err)
	}
	return disk
}
