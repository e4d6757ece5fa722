// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// overlaid is what is put beside the two functions of package stages that are renamed.
const overlaid = `package stages

import (
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/lab/labstage"
)

func sequence(session *node.Session, database *packages.Reading) []converge.Stage {
	return append(labstage.Stages(), shippedsequence(session, database)...)
}

func thingOf(session *node.Session, database *packages.Reading, ref converge.Ref) (converge.Thing, error) {
	if t := labstage.ThingOf(ref); t != nil {
		return t, nil
	}
	return shippedthingOf(session, database, ref)
}
`

// withLabStage builds gpuadm from this tree with package labstage's stage in front of its own, and returns the binary's
// bytes. The tree is not written to: the compiler reads two files elsewhere (go help build, -overlay).
func withLabStage(t *testing.T) string {
	t.Helper()
	top := must.Get(filepath.Abs(filepath.Join("..", "..")))(t)
	dir := t.TempDir()
	replace := map[string]string{}
	put := func(name, text string) {
		place := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(place, []byte(text), 0o644))
		replace[filepath.Join(top, "stages", name)] = place
	}
	for name, function := range map[string]string{"sequence.go": "sequence", "kinds.go": "thingOf"} {
		text := must.Get(os.ReadFile(filepath.Join(top, "stages", name)))(t)
		renamed := strings.Replace(string(text), "\nfunc "+function+"(", "\nfunc shipped"+function+"(", 1)
		if renamed == string(text) {
			t.Fatalf("cannot find func %s in stages/%s", function, name)
		}
		put(name, renamed)
	}
	put("overlaid.go", overlaid)
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o644)
	}
	must.OK(t, err)
	binary := filepath.Join(dir, "gpuadm")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, "./cmd/gpuadm")
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build gpuadm with the lab's stage: %v\n%s", err, out)
	}
	text := must.Get(os.ReadFile(binary))(t)
	return string(text)
}
