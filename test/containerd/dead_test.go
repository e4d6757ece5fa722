// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestNoDeadNodes starts daemons for real on every input, then on our edit of it, then on
// nvidia-ctk's: nightly every daemon, else half of them. A daemon that served CRI before serves it
// after ours, always. How many of nvidia-ctk's do not is logged.
func TestNoDeadNodes(t *testing.T) {
	all := parts.Get(t)
	var served, dead, theirDead atomic.Int32
	t.Run("each", func(t *testing.T) {
		for i, in := range inputs(t) {
			for j, p := range all.Containerd {
				if (i+j)%check.Every(2) != 0 {
					continue
				}
				t.Run(in.name+"/"+p.Name, func(t *testing.T) {
					t.Parallel()
					if !serves(t, p, in.files) {
						return
					}
					served.Add(1)
					files, err := gpuadmEdit(t, in, p, true)
					var refusal containerd.Refused
					must.That(t, err == nil || errors.As(err, &refusal), "%v", err)
					if err == nil && !serves(t, p, files) {
						dead.Add(1)
						t.Error("dead after our edit")
					}
					root := parts.Lay(t, withRoot(in.files))
					if run := all.CTK.RunCTK(t, root); run.Exit == 0 && !serves(t, p, run.Files) {
						theirDead.Add(1)
					}
				})
			}
		}
	})
	t.Logf("of %d nodes that served: dead after gpuadm %d, after nvidia-ctk %d", served.Load(), dead.Load(), theirDead.Load())
	check.That(t, served.Load() >= 100, "only %d inputs served to begin with: hardly tested", served.Load())
}

// serves says whether the daemon starts with these files and its CRI plugin with it.
func serves(t *testing.T, p parts.Part, files map[string][]byte) bool {
	t.Helper()
	b := p.Boot(t, parts.Lay(t, withRoot(files)))
	if !b.Up || !b.CRI {
		t.Logf("up %v, CRI %v:\n%s", b.Up, b.CRI, b.Log)
	}
	return b.Up && b.CRI
}

// withRoot has a root file: one that is named and missing stops every daemon, and an empty one
// means the same.
func withRoot(files map[string][]byte) map[string][]byte {
	files = maps.Clone(files)
	if files[etc+"/config.toml"] == nil && files["config.toml"] == nil {
		files[etc+"/config.toml"] = []byte{}
	}
	return files
}
