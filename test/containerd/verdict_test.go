// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
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

// world is a configuration of a machine: files, links to nothing, to themselves or to /dev/null, and
// folders.
type world struct {
	files   map[string][]byte
	links   []string
	circles []string
	masks   []string
	folders []string
}

func (w world) copied() world {
	return world{
		files:   maps.Clone(w.files),
		links:   slices.Clone(w.links),
		circles: slices.Clone(w.circles),
		masks:   slices.Clone(w.masks),
		folders: slices.Clone(w.folders),
	}
}

const (
	rootFile = etc + "/config.toml"
	criV2    = `plugins."io.containerd.grpc.v1.cri"`
	runcV2   = "[" + criV2 + ".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n"
)

// certsD has the plugin look for its registries in a folder.
const certsD = "[" + criV2 + ".registry]\nconfig_path = \"/etc/containerd/certs.d\"\n"

// roots are configurations that serve pods, with containerd 1.x and 2.x.
func roots() []world {
	const imports = "imports = [\"/etc/containerd/conf.d/*.toml\"]\n"
	one := func(text string, more ...string) world {
		w := world{files: map[string][]byte{rootFile: []byte(text)}}
		for i, text := range more {
			w.files[fmt.Sprintf("%s/conf.d/%d0-more.toml", etc, i+2)] = []byte(text)
		}
		return w
	}

	return []world{
		one("version = 2\n"),
		one("version = 2\n" + imports),
		one("version = 2\n" + imports + runcV2),
		one("version = 2\n"+imports, "version = 2\noom_score = 1\n"),
		one("version = 2\n"+imports, "version = 2\n"+runcV2),
		one("version = 2\n" + runcV2 + certsD),
	}
}

// foreignEdits are what another program, or an operator, does to a configuration. Each is from a
// report, or breaks one of the plugin's rules.
func foreignEdits() map[string]func(w *world) {
	drop := func(name, text string) func(*world) {
		return func(w *world) { w.files[etc+"/conf.d/"+name] = []byte(text) }
	}
	tail := func(text string) func(*world) {
		return func(w *world) {
			w.files[rootFile] = append(slices.Clone(w.files[rootFile]), text...)
		}
	}

	return map[string]func(*world){
		"nothing":      func(*world) {},
		"a link":       func(w *world) { w.links = append(w.links, etc+"/conf.d/10-x.toml") },
		"a later link": func(w *world) { w.links = append(w.links, etc+"/conf.d/99-z.toml") },
		"a circle":     func(w *world) { w.circles = append(w.circles, etc+"/conf.d/12-c.toml") },
		"a mask":       func(w *world) { w.masks = append(w.masks, etc+"/conf.d/15-m.toml") },
		"a folder":     func(w *world) { w.folders = append(w.folders, etc+"/conf.d/16-f.toml") },
		"logs":         drop("30-logs.toml", "version = 2\n[debug]\nlevel = \"warn\"\n"),
		"a wrong type": drop("40-type.toml", "version = 2\noom_score = \"x\"\n"),
		"no TOML":      drop("40-toml.toml", "version = \n"),
		"newer": drop("50-new.toml",
			"version = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\nenable_selinux = false\n"),
		"mirrors": tail("[" + criV2 + ".registry.mirrors.\"docker.io\"]\n" +
			"endpoint = [\"https://mirror.example\"]\n"),
		"no duration": drop("60-time.toml",
			"version = 2\n["+criV2+"]\nstream_idle_timeout = \"soon\"\n"),
		"a lost default": drop("70-default.toml",
			"version = 2\n["+criV2+".containerd]\ndefault_runtime_name = \"gone\"\n"),
		"registry": drop("80-registry.toml",
			"version = 2\n"+certsD+"["+criV2+".registry.configs.\"m.example\".tls]\nca_file = \"/x\"\n"),
	}
}

// TestVerdictIsTheDaemons: after apply with one containerd, edits by others, an upgrade and an undo,
// gpuadm's verdict on the files is what a real start of the daemon shows: so nothing restarts a
// daemon that does not serve afterwards, and no sound tree is refused.
func TestVerdictIsTheDaemons(t *testing.T) {
	all := parts.Get(t).Containerd
	rng := rand.New(rand.NewPCG(61, 1))
	edits := foreignEdits()
	names := slices.Sorted(maps.Keys(edits))

	trials := 1600 / check.Every(32)
	var sound, refused atomic.Int32
	t.Run("each", func(t *testing.T) {
		for i := range trials {
			w := roots()[rng.IntN(len(roots()))]
			before := all[rng.IntN(len(all))]
			now := all[rng.IntN(len(all))] // another version: an upgrade, or a downgrade
			first := names[i%len(names)]
			second := names[rng.IntN(len(names))]
			undone := rng.IntN(2) == 0
			asDefault := rng.IntN(2) == 0

			name := fmt.Sprintf("%d %s to %s, %s, %s", i, before.Name, now.Name, first, second)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := w.copied()
				target, found, made := applied(t, &w, before, asDefault)
				edits[first](&w)
				if second != first {
					edits[second](&w)
				}
				edited := w.copied()
				if undone && target != "" {
					takeOut(t, &w, target, found, made)
				}
				nothingLost(t, edited, w, target)

				says, serves := verdict(t, w, now)
				check.That(t, (says == nil) == serves,
					"the verdict is %v, and a real start serves: %v\n%s", says, serves, w)
				if serves {
					sound.Add(1)
					appliedAgain(t, w, now, asDefault)
				} else {
					refused.Add(1)
				}
			})
		}
	})
	least := int32(trials / 8)
	check.That(t, sound.Load() >= least && refused.Load() >= least, "%d trees serve, %d do not", sound.Load(), refused.Load())
	t.Logf("%d trees serve, %d do not", sound.Load(), refused.Load())
}

// TestVerdictOfNoFile: a daemon whose options name a file that is not there does not start, whatever
// its "config dump" prints.
func TestVerdictOfNoFile(t *testing.T) {
	for _, p := range parts.Get(t).Containerd {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			root := parts.Lay(t, map[string][]byte{etc + "/conf.d/10.toml": []byte("version = 2\n")})
			config := filepath.Join(root, "config.toml")
			e := facts.Engine{
				Name:    "containerd",
				Version: p.Version,
				Binary:  p.Path,
				Config:  config,
				Args:    []string{p.Path, "--config", config},
				Files:   []facts.File{{Path: config}},
			}

			var live host.View = must.Get(local.Open("/"))(t)
			says := containerd.Verdict(t.Context(), live, e)
			check.That(t, errors.Is(says, containerd.RefusedStart), "the verdict is %v", says)
			booted := p.Boot(t, root)
			check.That(t, !booted.Up, "a real start serves")
		})
	}
}

// applied edits a configuration as apply does; target is "" where gpuadm refuses.
func applied(t *testing.T, w *world, p parts.Part, asDefault bool) (target string, found, made []byte) {
	t.Helper()
	in := input{"world", w.files}
	tree := in.tree(t, p)
	d := containerd.Daemon{Version: p.Version}
	h := engine.Handler{Name: "nvidia", Binary: binary, Default: asDefault}

	target, err := containerd.Target(tree, d, h)
	if err != nil {
		return "", nil, nil
	}
	found = w.files[target]
	made, err = containerd.Edit(tree, d, h, target, found)
	must.That(t, err == nil, "cannot edit %s: %v", w, err)
	w.files[target] = made
	return target, found, made
}

// takeOut edits a configuration as undo does.
func takeOut(t *testing.T, w *world, target string, found, made []byte) {
	t.Helper()
	rest, _, err := engine.TakeOut(found, made, w.files[target])
	switch {
	case err != nil: // undo refuses
	case len(rest) == 0 && found == nil:
		delete(w.files, target)
	default:
		w.files[target] = rest
	}
}

// appliedAgain applies with the present containerd, as after an upgrade: a tree that served serves
// after it, too. What gpuadm refuses it has not touched.
func appliedAgain(t *testing.T, w world, p parts.Part, asDefault bool) {
	t.Helper()
	in := input{"world", w.files}
	tree := in.tree(t, p)
	d := containerd.Daemon{Version: p.Version}
	h := engine.Handler{Name: "nvidia", Binary: binary, Default: asDefault}

	target, err := containerd.Target(tree, d, h)
	if err != nil {
		return
	}
	made, err := containerd.Edit(tree, d, h, target, w.files[target])
	if err != nil {
		return
	}
	again := w.copied()
	again.files[target] = made
	says, serves := verdict(t, again, p)
	check.That(t, says == nil && serves, "after another apply the verdict is %v, and a real start serves: %v\n%s", says, serves, again)
}

// nothingLost verifies that an undo has kept what others wrote: each file but gpuadm's target to the
// byte, and of the target each line that a foreign edit adds at its end.
func nothingLost(t *testing.T, edited, undone world, target string) {
	t.Helper()
	for name, text := range edited.files {
		if name != target {
			check.Equal(t, string(undone.files[name]), string(text), "%s after the undo:", name)
		}
	}

	if strings.Contains(string(edited.files[target]), "mirror.example") {
		check.Has(t, string(undone.files[target]), "mirror.example", "%s after the undo:", target)
	}
}

// verdict is what gpuadm says of a configuration, and whether a real start of the daemon serves CRI.
func verdict(t *testing.T, w world, p parts.Part) (says error, serves bool) {
	t.Helper()
	root := parts.Lay(t, w.files)
	for _, name := range w.links {
		at := filepath.Join(root, strings.TrimPrefix(name, etc))
		must.OK(t, os.MkdirAll(filepath.Dir(at), 0o755))
		must.OK(t, os.Symlink("/opt/missing.toml", at))
	}

	for _, name := range w.circles {
		at := filepath.Join(root, strings.TrimPrefix(name, etc))
		must.OK(t, os.MkdirAll(filepath.Dir(at), 0o755))
		must.OK(t, os.Symlink(filepath.Base(at), at))
	}

	for _, name := range w.masks {
		at := filepath.Join(root, strings.TrimPrefix(name, etc))
		must.OK(t, os.MkdirAll(filepath.Dir(at), 0o755))
		must.OK(t, os.Symlink("/dev/null", at))
	}

	for _, name := range w.folders {
		must.OK(t, os.MkdirAll(filepath.Join(root, strings.TrimPrefix(name, etc)), 0o755))
	}

	config := filepath.Join(root, "config.toml")
	e := facts.Engine{
		Name:    "containerd",
		Version: p.Version,
		Binary:  p.Path,
		Config:  config,
	}
	names := must.Get(filepath.Glob(filepath.Join(root, "conf.d", "*.toml")))(t)
	imports := strings.Contains(string(w.files[rootFile]), "imports")
	for _, name := range append([]string{config}, names...) {
		data, err := os.ReadFile(name)
		if err != nil {
			data = nil
		}
		if name == config || imports {
			e.Files = append(e.Files, facts.File{Path: name, Data: data})
		}
	}

	var live host.View = must.Get(local.Open("/"))(t)
	says = containerd.Verdict(t.Context(), live, e)
	booted := p.Boot(t, root)
	return says, booted.Up && booted.CRI
}

func (w world) String() string {
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(w.files)) {
		fmt.Fprintf(&all, "-- %s --\n%s", path.Base(name), w.files[name])
	}
	for _, name := range w.links {
		fmt.Fprintf(&all, "-- %s leads to nothing\n", path.Base(name))
	}
	for _, name := range w.circles {
		fmt.Fprintf(&all, "-- %s leads to itself\n", path.Base(name))
	}
	for _, name := range w.masks {
		fmt.Fprintf(&all, "-- %s leads to /dev/null\n", path.Base(name))
	}
	for _, name := range w.folders {
		fmt.Fprintf(&all, "-- %s is a folder\n", path.Base(name))
	}
	return all.String()
}
