// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestSpellingOf1x: a setting that containerd 1.x passes over because of how its name is written is refused for it, and edited for 2.x.
func TestSpellingOf1x(t *testing.T) {
	const cri = "plugins.\"io.containerd.grpc.v1.cri\""
	for text, what := range map[string]string{
		"Version = 2\n[" + cri + "]\n":                                                       "does not read Version: it minds upper and lower case",
		"version = 2\n[P" + cri[1:] + "]\n":                                                  "does not read Plugins: it minds upper and lower case",
		"version = 2\n[" + cri + "]\nEnable_CDI = true\n":                                    "does not read Enable_CDI: it minds upper and lower case",
		"version = 2\n[" + cri + ".containerd.Runtimes.a]\n":                                 "does not read Runtimes: it minds upper and lower case",
		"version = 2\n[plugins.\"io.containerd.grpc.v1\\u002ecri\".containerd.runtimes.a]\n": "does not decode the escape in",
		"VERSION = 2\n[" + cri + ".CONTAINERD.RUNTIMES.a]\nruntime_type = \"x\"\n":           "",
	} {
		tree := Tree{Root: File{Path: etc + "/config.toml", Data: []byte(text)}}
		for _, version := range []string{"1.6.36", "1.7.24", "2.3.4"} {
			_, err := Target(tree, Daemon{version}, handlers()[0])
			r := (*trouble.Error)(nil)
			if errors.As(err, &r); (r != nil) != (what != "" && version[0] == '1') || r != nil && (!strings.Contains(r.What, what) || !strings.Contains(r.What, "config.toml:") || r.Try[0] == "") {
				t.Errorf("%q, containerd %s: %v, want %q", text, version, err, what)
			}
		}
	}
}

// TestLastComment: a file that ends in a comment without a line break is read to its end, wherever it is.
func TestLastComment(t *testing.T) {
	for _, text := range []string{"version = 2\n# end", "version = 2\r\n# end", "version = 3\n# {", "# end", "#", "a = 1 # end"} {
		root := "version = 2\nimports = [\"conf.d/*.toml\"]\n"
		for _, files := range []map[string][]byte{
			{etc + "/config.toml": []byte(text)},
			{etc + "/config.toml": []byte(root), etc + "/conf.d/50-x.toml": []byte(text)},
			{etc + "/config.toml": []byte(root + "# end"), etc + "/conf.d/99-gpuadm.toml": []byte(text)},
		} {
			for _, d := range daemons() {
				tree := layTree(t, files)
				target, err := Target(tree, d, handlers()[0])
				if err != nil {
					continue // of version 1
				}
				if out, err := Edit(tree, d, handlers()[0], target, tree.data(target)); err != nil || !strings.Contains(string(out), "end") && strings.Contains(string(tree.data(target)), "end") {
					t.Errorf("%q in %v, containerd %s: %v\n%s", text, slices.Collect(maps.Keys(files)), d.Version, err, out)
				}
			}
		}
	}
}

// TestVersion1: a file of version 1 is refused with what to write, and one that is imported and says nothing of plugins counts as none.
func TestVersion1(t *testing.T) {
	const imports = "version = 2\nimports = [\"conf.d/*.toml\"]\n"
	for text, fix := range map[string]string{
		"root = \"/x\"\n": "write version = 2 as the first line",
		"version = 1\n[plugins.cri.containerd.runtimes.runc]\n": "write version = 2 as the first line, and [plugins.\"io.containerd.grpc.v1.cri\"] for [plugins.cri]",
		"[plugins.cri]\n": "write version = 2 as the first line, and [plugins.\"io.containerd.grpc.v1.cri\"] for [plugins.cri]",
		imports + "\x00version = 1\n[plugins.opt]\n": "write version = 2 as the first line",
		imports + "\x00[debug]\nlevel='info'\n":      "",
		"# only a comment\n":                         "",
	} {
		root, imported, _ := strings.Cut(text, "\x00")
		tree := layTree(t, map[string][]byte{etc + "/config.toml": []byte(root), etc + "/conf.d/a.toml": []byte(imported)})
		for _, d := range daemons() {
			_, err := Target(tree, d, handlers()[0])
			r := (*trouble.Error)(nil)
			if errors.As(err, &r); (fix == "") != (err == nil) || r != nil && (!errors.Is(err, RefusedVersion) || r.Try[0] != fix || !strings.Contains(r.What, "version 1")) {
				t.Errorf("%q, containerd %q: %v", text, d.Version, err)
			}
		}
	}
	for _, v := range []string{"1.6.36", "1.7.24"} {
		_, err := Target(Tree{Root: File{Path: etc + "/config.toml", Data: []byte("disabled_plugins = [\"cri\"]\n")}}, Daemon{v}, handlers()[0])
		check.That(t, errors.Is(err, RefusedDisabled), "as Docker's package has it: %v", err)
	}
}

// TestLatin1: bytes that are no UTF-8 are refused where they are, with words that are true for each containerd.
func TestLatin1(t *testing.T) {
	tree := Tree{Root: File{Path: etc + "/config.toml", Data: []byte("version = 2\n# \xf6\n")}}
	_, err := Target(tree, Daemon{"1.7.24"}, handlers()[0])
	r := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &r) && strings.Contains(r.What, "config.toml:2: byte 0xF6 is no UTF-8") && strings.Contains(r.Try[0], "iconv -f latin1"), "%v", err)
}
