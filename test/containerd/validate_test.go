// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/containerd/parts"
	"github.com/gpuadm/gpuadm/test/must"
)

// judge is a machine with the part as its daemon.
type judge struct {
	host.View
	part parts.Part
}

func (j judge) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error) {
	return j.View.AskAbout(ctx, files, append([]string{j.part.Path}, argv[1:]...)...)
}

// AskWith has no files of the machine to ask about: the trees of the tests lie in memory.
func (judge) AskWith(context.Context, []string, ...string) ([]byte, error) {
	return nil, host.Later{Until: "a real tree"}
}

// engineOf is the engine that reads a tree.
func engineOf(t containerd.Tree) facts.Engine {
	return facts.Engine{
		Name:   "containerd",
		Binary: "containerd",
		Config: t.Root.Path,
	}
}

// proven has the part judge gpuadm's edit, as it does on a machine where it runs. What gpuadm
// refuses is proven.
func proven(t *testing.T, in input, p parts.Part, asDefault bool) error {
	t.Helper()
	live := must.Get(local.Open("/"))(t)
	h := engine.Handler{
		Name:    "nvidia",
		Binary:  binary,
		Default: asDefault,
		CDI:     true,
	}
	tree, d := in.tree(t, p), containerd.Daemon{Version: p.Version}
	target, err := containerd.Target(tree, d, h)
	if err != nil {
		return nil
	}
	out, err := containerd.Edit(tree, d, h, target, in.files[target])
	if err != nil {
		return nil
	}
	return containerd.Validate(t.Context(), judge{live, p}, engineOf(tree), tree, h, target, in.files[target], out)
}

// TestProofAcceptsOurs: what the table calls exact, the proof on the machine accepts, and it
// rejects what the daemon rejects before.
func TestProofAcceptsOurs(t *testing.T) {
	for _, in := range inputs(t) {
		for _, p := range parts.Get(t).Containerd {
			t.Run(in.name+"/"+p.Name, func(t *testing.T) {
				t.Parallel()
				_, rejects := dump(t, p, in.files)
				for _, asDefault := range []bool{false, true} {
					err := proven(t, in, p, asDefault)
					check.That(t, err == nil || rejects != nil, "default %v: %v", asDefault, err)
				}
			})
		}
	}
}

// TestProofRefusesWhatKills: candidates that `config dump` takes with exit 0, and that leave a node
// without CRI or a handler that is not one.
func TestProofRefusesWhatKills(t *testing.T) {
	live := must.Get(local.Open("/"))(t)
	const cri, cri3 = `plugins."io.containerd.grpc.v1.cri"`, `plugins."io.containerd.cri.v1.runtime"`
	entry := "runtime_type = \"io.containerd.runc.v2\"\n[NAME.containerd.runtimes.nvidia.options]\nBinaryName = \"" + binary + "\"\n"
	for what, c := range map[string]struct{ before, after, daemons string }{
		"drops runc on 1.x":        {"version = 2\n", "version = 2\n[NAME.containerd.runtimes.nvidia]\n" + entry, "1.6 1.7"},
		"default is not there":     {"version = 2\n", "version = 2\n[NAME.containerd]\ndefault_runtime_name = \"nvidia\"\n", "1.6 1.7 2.1 2.4"},
		"no handler":               {"version = 2\n", "version = 2\n# nothing\n", "1.6 1.7 2.1 2.4"},
		"another plugin's name":    {"version = 2\n", "version = 2\n[" + cri3 + ".containerd.runtimes.nvidia]\n" + strings.ReplaceAll(entry, "NAME", cri3), "1.6 1.7"},
		"the wrong binary":         {"version = 2\n", "version = 2\n[NAME.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n[NAME.containerd.runtimes.nvidia]\n" + strings.ReplaceAll(entry, binary, "/usr/bin/runc"), "1.6 1.7 2.1 2.4"},
		"both spellings":           {"version = 2\n", "version = 2\n[NAME.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n[NAME.containerd.runtimes.nvidia]\n" + entry + "binaryName = \"/usr/bin/runc\"\n", "1.6 1.7 2.1 2.4"},
		"the image of pause":       {"version = 2\n[NAME]\nmax_container_log_line_size = 99\n", "version = 2\n[NAME.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n[NAME.containerd.runtimes.nvidia]\n" + entry, "1.6 1.7 2.1 2.4"},
		"SystemdCgroup lost":       {"version = 2\n[NAME.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n[NAME.containerd.runtimes.runc.options]\nSystemdCgroup = true\n", "version = 2\n[NAME.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n[NAME.containerd.runtimes.runc.options]\nSystemdCgroup = true\n[NAME.containerd.runtimes.nvidia]\n" + entry, "1.6 1.7 2.1 2.4"},
		"not TOML":                 {"version = 2\n", "version = 2\n[", "1.6 1.7 2.1 2.4"},
		"a version it cannot read": {"version = 2\n", "version = 9\n", "1.7 2.1 2.4"},
		"CRI off":                  {"version = 2\n", "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[NAME.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n[NAME.containerd.runtimes.nvidia]\n" + entry, "1.6 1.7 2.1 2.4"},
	} {
		for _, p := range parts.Get(t).Containerd {
			if !strings.Contains(c.daemons, p.Name) {
				continue
			}
			t.Run(what+"/"+p.Name, func(t *testing.T) {
				t.Parallel()
				before, after := strings.ReplaceAll(c.before, "NAME", cri), strings.ReplaceAll(c.after, "NAME", cri)
				tree := containerd.Tree{Root: containerd.File{
					Path: etc + "/config.toml",
					Data: []byte(before),
				}}
				h := engine.Handler{Name: "nvidia", Binary: binary}
				err := containerd.Validate(t.Context(), judge{live, p}, engineOf(tree), tree, h, tree.Root.Path, []byte(before), []byte(after))
				if err == nil {
					t.Error("accepted")
				} else {
					t.Log(err)
				}
			})
		}
	}
}
