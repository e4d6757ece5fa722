// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// brings fills in the kernel modules that changes install or remove: from the catalog for packages
// asked for, from the files of installed packages. A change of marks has none.
func brings(ctx context.Context, v host.View, packager Packager, changes []converge.Change) error {
	var ask []string
	for i, c := range changes {
		before := Parse(c.Before)
		onlyMarks := before.Version == Parse(c.After).Version && before.Broken == ""
		switch {
		case onlyMarks:
			changes[i].Brings = nil
		case len(c.Brings) == 0 && before.Installed():
			ask = append(ask, c.Name)
		}
	}

	if len(ask) == 0 {
		return nil
	}

	files, err := packager.FilesOf(ctx, v, ask)
	for i, c := range changes {
		if len(c.Brings) == 0 {
			changes[i].Brings = modulesIn(files[c.Name])
		}
	}

	return err
}

const storageModule = "nvidia-fs" // GPUDirect Storage's module, which has versions of its own

// modulesIn names NVIDIA's kernel modules among files, and those that DKMS builds from them:
// dkms(8) has the sources of nvidia 580.95.05 in /usr/src/nvidia-580.95.05. All modules of the
// driver count as nvidia, since they are loaded with it.
func modulesIn(files []string) (modules []string) {
	for _, file := range files {
		name := moduleName(file)
		if !strings.HasPrefix(name, "nvidia") {
			continue
		}
		module := "nvidia"
		if strings.HasPrefix(name, storageModule) {
			module = storageModule
		}
		if !slices.Contains(modules, module) {
			modules = append(modules, module)
		}
	}
	return modules
}

// moduleName returns the name of a kernel module's file, or of a folder that DKMS builds modules
// from; "" for any other file.
func moduleName(file string) string {
	name := path.Base(file)
	if name == "dkms.conf" && strings.HasPrefix(file, "/usr/src/") {
		return path.Base(path.Dir(file))
	}
	if strings.Contains(file, "/lib/modules/") && strings.Contains(name, ".ko") {
		return name
	}
	return ""
}
