// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// oneVersion is in the name of a listing of one version of the driver: ubuntu2204__nvidia__570.133.20.txt.
var oneVersion = pattern.Of(`__(\d{3}\.\d+(?:\.\d+)?)(?:-[a-z]+)?\.txt$`)

// TestLockstep holds the names of packages that must be of one version against the recorded lists of real repositories: of a list of one
// version each of them is of that version.
func TestLockstep(t *testing.T) {
	files, err := filepath.Glob("../../test/listings/data/*.txt")
	if err != nil || len(files) < 20 {
		t.Fatal("no listings", err)
	}
	found := 0
	for _, file := range files {
		of := oneVersion().FindStringSubmatch(filepath.Base(file))
		if of == nil {
			continue
		}
		data := must.Get(os.ReadFile(file))(t)
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) < 2 || !isLockstep(f[0]) {
				continue
			}
			v := driverVersion().FindStringSubmatch(f[1])
			if v == nil {
				continue
			}
			found++
			if v[1] != of[1] {
				t.Errorf("%s: %s is %s", filepath.Base(file), f[0], f[1])
			}
		}
	}
	check.That(t, found >= 100, "only %d packages are found that must be of the driver's version", found)
}
