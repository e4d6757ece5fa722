// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

// parsed is a spec's [runtime].
func parsed(t *testing.T, text string) spec.Spec {
	t.Helper()
	s := specs.Of(t, "[runtime]\n"+text)
	return s
}

// TestCDIKeepsTheOwnersWord: an enable_cdi = false stays where the spec does not say cdi = true
// itself, and a note names it. containerd 1.6 has no such key, and 2.4 none any more.
func TestCDIKeepsTheOwnersWord(t *testing.T) {
	for _, version := range []string{"1.6.36", "1.7.24", "2.0.4", "2.1.5", "2.4.2"} {
		for _, says := range []string{"", "enable_cdi = false", "enable_cdi = true"} {
			for _, text := range []string{"", "cdi = true\n", "cdi = false\n"} {
				found := fmt.Appendf(nil, "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n%s\n", says)
				e := facts.Engine{
					Name:    "containerd",
					Version: version,
					Config:  etc + "/config.toml",
					Files:   []facts.File{{Path: etc + "/config.toml", Data: found}},
				}
				s, f := parsed(t, text), facts.Facts{Engines: []facts.Engine{e}}
				out := must.Get(Edit(treeOf(e), Daemon{version}, HandlerFor(s, f, e), e.Config, found))(t)
				key := version != "1.6.36" && version != "2.4.2"
				off := says == "" && version == "1.7.24"
				want := says
				if key && (off && text != "cdi = false\n" || says == "enable_cdi = false" && text == "cdi = true\n") {
					want = "enable_cdi = true"
				}
				got := bytes.Count(out, []byte("enable_cdi"))
				check.That(t, (want != "" || got <= 0) && (want == "" || bytes.Contains(out, []byte(want))) && got <= 1, "%s, %q, %q: want %q\n%s", version, says, text, want, out)
				note := strings.Join(Notes(s, f, e), "\n")
				kept := key && says == "enable_cdi = false" && text == ""
				check.That(t, strings.Contains(note, e.Config+" says enable_cdi = false, which stays") == kept, "%s, %q, %q: note %q", version, says, text, note)
			}
		}
	}
}

// TestCDIFile: gpuadm names the file that decides about CDI. In containerd 1.x an
// imported table of the plugin hides the root's as a whole.
func TestCDIFile(t *testing.T) {
	const cri = "[plugins.\"io.containerd.grpc.v1.cri\"]\n"
	for _, x := range []struct{ version, root, later, decides string }{
		{"2.1.5", "", "enable_cdi = false\n", "/conf.d/50-x.toml"},
		{"2.1.5", "enable_cdi = false\n", "enable_selinux = true\n", "/config.toml"},
		{"1.7.24", "enable_cdi = true\n", "enable_cdi = false\n", "/conf.d/50-x.toml"},
	} {
		e := facts.Engine{
			Name:    "containerd",
			Version: x.version,
			Config:  etc + "/config.toml",
			Files: []facts.File{
				{Path: etc + "/config.toml", Data: []byte("version = 2\nimports = [\"conf.d/*.toml\"]\n" + cri + x.root)},
				{Path: etc + "/conf.d/50-x.toml", Data: []byte("version = 2\n" + cri + x.later)},
			},
		}
		note := strings.Join(Notes(parsed(t, ""), facts.Facts{}, e), "\n")
		check.Has(t, note, etc+x.decides+" says enable_cdi = false", "%s, %q: the note", x.version, x.root)
		check.Has(t, WithoutCDI(e), "CDI is off in "+etc+x.decides+": write", "%s, %q:", x.version, x.root)
	}
}

// TestImportsOfImports: a daemon that runs is stale once a file changes that an imported file
// imports.
func TestImportsOfImports(t *testing.T) {
	e := facts.Engine{Name: "containerd", Unit: "containerd.service", Version: "1.7.24", Config: etc + "/config.toml", Files: []facts.File{
		{Path: etc + "/config.toml", Data: []byte("version = 2\nimports = [\"conf.d/*.toml\"]\n")},
		{Path: etc + "/conf.d/10-more.toml", Data: []byte("version = 2\nimports = [\"/srv/more.d/*.toml\", \"one.toml\"]\n")},
		{Path: etc + "/conf.d/one.toml", Data: []byte("# later\n")},
		{Path: "/srv/more.d/50-cri.toml", Data: []byte("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n")},
	}}
	s, f := parsed(t, ""), facts.Facts{Engines: []facts.Engine{e}}
	all := must.Get(Wants(s, f, e))(t)
	last := all[len(all)-1].Thing
	got := strings.Join(last.Ref().Reads, " ")
	want := "/etc/containerd/config.toml /etc/containerd/conf.d /srv/more.d /etc/containerd/conf.d/one.toml"
	check.That(t, got == want, "reads %s, want %s", got, want)
	state := last.(converge.Follower).Affected(things.UpToDate, converge.Change{Ref: converge.Ref{
		Kind: "file",
		Name: "/srv/more.d/50-cri.toml",
	}})
	check.That(t, state == things.Outdated, "after the edit it is %s", state)
}

// TestRelativeImportsMoved: the copy that a daemon judges imports the same files, also where it
// takes a star from its working directory.
func TestRelativeImportsMoved(t *testing.T) {
	f := File{
		Path: etc + "/config.toml",
		Data: []byte("imports = [\"conf.d/*.toml\", \"one.toml\"]\n"),
	}
	for version, want := range map[string]string{"1.6.20": "/conf.d/*.toml", "1.6.29": etc + "/conf.d/*.toml", "1.7.15": "/conf.d/*.toml", "1.7.16": etc + "/conf.d/*.toml", "2.1.5": etc + "/conf.d/*.toml"} {
		moved, err := relocate(f, Tree{Globs: facts.Globs(version)})
		check.That(t, err == nil && strings.Contains(string(moved), host.Scratch+want+"\"") && strings.Contains(string(moved), host.Scratch+etc+"/one.toml\""),
			"%s: %v %s", version, err, moved)
	}
}

// TestAutoOnAKSIsNotOurs: in a pool made with --gpu-driver none AKS writes no NVIDIA handler. The
// one found there under another name is what an earlier spec had gpuadm write: "auto" means the
// same as on a fresh node.
func TestAutoOnAKSIsNotOurs(t *testing.T) {
	entry := func(name string) string {
		return fmt.Sprintf("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.%s]\nruntime_type = \"io.containerd.runc.v2\"\n"+
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.%[1]s.options]\nBinaryName = %q\n", name, engine.Binary)
	}

	for text, want := range map[string]string{"": "nvidia", entry("nvidia-two"): "nvidia", entry("nvidia-two") + entry(platform.Of("aks").Engine.Handler): platform.Of("aks").Engine.Handler} {
		found := []byte("version = 2\n" + text)
		e := facts.Engine{
			Name: "containerd", Version: "1.7.24", Owner: "aks", Config: etc + "/config.toml",
			Files: []facts.File{{Path: etc + "/config.toml", Data: found}},
		}
		f := facts.Facts{Engines: []facts.Engine{e}, Programs: []string{engine.Binary}}
		got := HandlerFor(parsed(t, ""), f, e).Name
		check.That(t, got == want, "auto is %s, want %s, of\n%s", got, want, found)
	}
}

// TestManyWrongHandlers: the first of a thousand wrong handlers is named, and the file is not
// parsed for each.
func TestManyWrongHandlers(t *testing.T) {
	text := strings.Builder{}
	text.WriteString("version = 2\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.h%04d]\nruntime_type = 5\n", 999-i)
	}
	parsed := testing.AllocsPerRun(1, func() {
		_, err := Target(Tree{Root: File{
			Path: "/etc/containerd/config.toml",
			Data: []byte(text.String()),
		}}, Daemon{Version: "1.7.24"}, handlers()[0])
		check.That(t, err != nil && strings.Contains(err.Error(), "h0000"), "%v", err)
	})
	if one := testing.AllocsPerRun(1, func() { _, _ = toml.Parse([]byte(text.String())) }); parsed > 50*one {
		t.Errorf("%.0f allocations, of one parse %.0f", parsed, one)
	}
}

// TestSpellings: names of plugins and handlers are spelt exactly, and an empty name is a name.
func TestSpellings(t *testing.T) {
	for what, text := range map[string]string{
		"a plugin in capitals":     "version = 2\nroot = '/x'\n[plugins.\"io.containerd.grpc.v1.CRI\".containerd.Runtimes.kata]\nruntime_type = \"io.containerd.kata.v2\"\n",
		"a handler without a name": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.\"\"]\nruntime_type = \"io.containerd.runc.v2\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.a]\nruntime_type = \"io.containerd.runc.v2\"\nsnapshotter = \"s\"\n",
	} {
		tree, texts := Tree{Root: File{Path: "/c.toml", Data: []byte(text)}}, map[string]bool{}
		for range 50 {
			out, err := Edit(tree, Daemon{Version: "1.7.24"}, handlers()[0], "/c.toml", tree.Root.Data)
			must.That(t, err == nil, "%s: %v", what, err)
			texts[string(out)] = true
		}

		check.That(t, len(texts) == 1, "%s: %d results", what, len(texts))
	}
}
