// SPDX-License-Identifier: Apache-2.0

package house

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestModules: go reads each go.mod of the repository. The labs build the programs of most modules
// once, and keep them, so a broken file would only show on a machine without that cache.
func TestModules(t *testing.T) {
	const root = "../.."
	var folders []string
	must.OK(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "bin" || d.Name() == ".git"):
			return filepath.SkipDir
		case d.Name() == "go.mod":
			folders = append(folders, filepath.Dir(name))
		}
		return nil
	}))
	must.That(t, len(folders) > 1, "the modules are %q", folders)

	for _, folder := range folders {
		edit := exec.Command("go", "mod", "edit", "-json")
		edit.Dir = folder
		said, err := edit.CombinedOutput()
		check.That(t, err == nil, "go cannot read go.mod in %s: %s", folder, said)
	}
}
