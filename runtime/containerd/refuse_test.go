// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestSpellingOf1x: a setting that containerd 1.x passes over because of how its name is written is
// refused for it, and edited for 2.x.
func TestSpellingOf1x(t *testing.T) {
	const cri = "plugins.\"io.containerd.grpc.v1.cri\""
	for text, what := range map[string]string{
		"Version = 2\n[" + cri + "]\n":                                             "does not read Version: it distinguishes upper and lower case",
		"version = 2\n[P" + cri[1:] + "]\n":                                        "does not read Plugins: it distinguishes upper and lower case",
		"version = 2\n[" + cri + "]\nEnable_CDI = true\n":                          "does not read Enable_CDI: it distinguishes upper and lower case",
		"version = 2\n[" + cri + ".containerd.Runtimes.a]\n":                       "does not read Runtimes: it distinguishes upper and lower case",
		"VERSION = 2\n[" + cri + ".CONTAINERD.RUNTIMES.a]\nruntime_type = \"x\"\n": "",
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

// TestLastComment: a file that ends in a comment without a line break is read to its end, wherever
// it is.
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

// TestVersion1: a file of version 1 is refused with what to write, and one that is imported and
// says nothing of plugins counts as none.
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
		_, err := Target(Tree{Root: File{
			Path: etc + "/config.toml",
			Data: []byte("disabled_plugins = [\"cri\"]\n"),
		}}, Daemon{v}, handlers()[0])
		check.That(t, errors.Is(err, RefusedDisabled), "as Docker's package has it: %v", err)
	}
}

// TestStart: what a daemon does not start with is refused with the file's name, and what it passes
// over is said; as measured with "containerd config dump" of 1.6.20, 1.7.24, 2.1.9, 2.3.4 and
// 2.4.2, and by starting them where an import is missing.
func TestStart(t *testing.T) {
	const v2, v3 = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n", "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.gvisor]\n"
	root := func(version, more string) string {
		return "version = " + version + "\nimports = [\"/etc/containerd/a.toml\"]\n" + more
	}
	for _, x := range []struct{ root, imported, refused, unread string }{
		{root("2", ""), "version = 3\n" + v3, "1.6 1.7 2.3", ""},
		{root("2", v2), "version = 3\n" + v3, "1.6 1.7 2.3", "2.1"},
		{root("3", ""), "version = 4\n" + v3, "1.6 1.7 2.1 2.3", ""},
		{root("2", v2), "version = 2\n" + v2, "", ""},
		{root("2", v2+"runtime_type = 'x'\n"), "version = 2\n" + v2, "", "1.6 1.7"},
		{root("2", ""), "", "1.6 1.7 2.1 2.3 2.4", ""},
		{"version = 2\n[plugins.cri.containerd.runtimes.x]\n", "-", "1.6 1.7", ""},
		{"version = 2\n[plugins.\"io.containerd.x\"]\n", "-", "1.6 1.7", ""},
		{"version = 2\n[plugins .\t\"io.containerd.grpc.v1.cri\"]\n", "-", "1.6 1.7", ""},
		{"version = 2\n# a.\tb\n[ plugins\t. \"io.containerd.grpc.v1.cri\" ]\nx = \"a.\tb\"\n", "-", "", ""},
	} {
		files := map[string][]byte{etc + "/config.toml": []byte(x.root), etc + "/a.toml": []byte(x.imported)}
		if x.imported == "" {
			delete(files, etc+"/a.toml")
		}
		tree := layTree(t, files)
		var refused, unread []string
		for _, v := range []string{"1.6.20", "1.7.24", "2.1.9", "2.3.4", "2.4.2"} {
			if c, err := readTree(tree, Daemon{v}); err != nil {
				refused = append(refused, v[:3])
				check.That(t, errors.Is(err, RefusedStart) && strings.HasPrefix(err.Error(), "cannot edit /etc/containerd/") || errors.Is(err, RefusedVersion), "%v", err)
			} else if len(c.unread()) > 0 {
				unread = append(unread, v[:3])
			}
		}

		check.That(t, strings.Join(refused, " ") == x.refused && strings.Join(unread, " ") == x.unread,
			"%q with %q: refused by %v, unread by %v", x.root, x.imported, refused, unread)
	}
}

// TestLinkToNothing: a pattern matches a link that leads nowhere, and then no containerd starts.
// gpuadm's own drop-in, which is not there yet, is no such link.
func TestLinkToNothing(t *testing.T) {
	text := "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n"
	root := File{Path: etc + "/config.toml", Data: []byte(text)}
	for _, d := range daemons() {
		link := Tree{Root: root, Imports: []File{{Path: etc + "/conf.d/10-x.toml"}}}
		_, err := Target(link, d, handlers()[0])
		check.That(t, errors.Is(err, RefusedStart), "containerd %s: %v", d.Version, err)
		check.Has(t, fmt.Sprint(err), "config.toml:2: it imports /etc/containerd/conf.d/10-x.toml, which is not there",
			"containerd %s:", d.Version)

		folder := Tree{
			Root:    root,
			Imports: []File{{Path: etc + "/conf.d/20.toml", Is: "a folder"}},
		}
		_, err = Target(folder, d, handlers()[0])
		check.That(t, errors.Is(err, RefusedStart), "containerd %s: %v", d.Version, err)
		const says = "config.toml:2: it imports /etc/containerd/conf.d/20.toml, which is a folder"
		check.Has(t, fmt.Sprint(err), says, "containerd %s:", d.Version)

		ours := Tree{
			Root:    root,
			Imports: []File{{Path: etc + "/conf.d/" + dropIn, Data: []byte("version = 2\n")}},
		}
		target := must.Get(Target(ours, d, handlers()[0]))(t)
		_, err = Edit(ours, d, handlers()[0], target, nil)
		check.That(t, target != etc+"/conf.d/"+dropIn || err == nil, "containerd %s: %v", d.Version, err)
	}
}

// TestMissingRoot: the command that writes the missing file makes its folder first.
func TestMissingRoot(t *testing.T) {
	e := facts.Engine{
		Name:   "containerd",
		Binary: "/usr/bin/containerd",
		Config: "/srv/containerd/config.toml",
		Args:   []string{"/usr/bin/containerd", "--config", "/srv/containerd/config.toml"},
	}
	n := must.Get(simhost.New([]byte("-- usr/bin/containerd mode=0755 --\n")))(t)
	err := Verdict(t.Context(), n, e)
	var refused *trouble.Error
	must.That(t, errors.As(err, &refused), "%v", err)
	const write = "sudo sh -c 'mkdir -p /srv/containerd && /usr/bin/containerd config default >/srv/containerd/config.toml'"
	check.Has(t, strings.Join(refused.Try, "; "), write, "try:")
}

// TestLatin1: bytes that are not UTF-8 are refused where they are, with words that are true for each
// containerd.
func TestLatin1(t *testing.T) {
	tree := Tree{Root: File{Path: etc + "/config.toml", Data: []byte("version = 2\n# \xf6\n")}}
	_, err := Target(tree, Daemon{"1.7.24"}, handlers()[0])
	r := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &r) && strings.Contains(r.What, "config.toml:2: byte 0xF6 is not UTF-8") && strings.Contains(r.Try[0], "sudo iconv -f latin1"), "%v", err)
}

func TestShapeRefusals(t *testing.T) {
	const cri = `plugins."io.containerd.grpc.v1.cri"`
	for in, want := range map[string]string{
		"plugins = []":                                                "plugins is [], not a table",
		cri + " = 1":                                                  "is 1, not a table",
		cri + ".enable_cdi = 'yes'":                                   `enable_cdi is "yes", not a bool`,
		cri + ".containerd = 'x'":                                     `containerd is "x", not a table`,
		cri + ".containerd.runtimes.x = 1":                            "runtimes.x is 1, not a table",
		"[[" + cri + ".containerd.runtimes]]":                         "not a table",
		cri + ".containerd.default_runtime_name = 1":                  "default_runtime_name is 1, not a string",
		cri + ".containerd.default_runtime = 1":                       "default_runtime is 1, not a table",
		cri + ".containerd.runtimes.x.options = 1":                    "options is 1, not a table",
		cri + ".containerd.runtimes.x.runtime_type = false":           "runtime_type is false, not a string",
		cri + ".containerd.runtimes.nvidia.options.binaryName = 1979": "binaryName is 1979, not a string",
		"disabled_plugins = 'cri'":                                    `disabled_plugins is "cri", not an array of strings`,
		"a" + strings.Repeat(".a", 200) + " = 1":                      "nested more than 100 deep",
	} {
		tree := Tree{Root: File{Path: "/c.toml", Data: []byte("version = 2\n" + in + "\n")}}
		for _, d := range daemons() {
			_, err := Target(tree, d, handlers()[1])
			if code := Refused(""); !errors.As(err, &code) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s on %q: got %v, want %s", in, d.Version, err, want)
			} else if code == RefusedShape && !strings.HasPrefix(err.Error(), "cannot edit /c.toml:2: ") {
				t.Errorf("%s: %v, want line 2", in, err)
			}
		}
	}
}

// TestMerged: what each version makes of two files: 1.x takes the last table as a whole, 2.x merges
// and migrates.
func TestMerged(t *testing.T) {
	text := func(version, more string) []byte {
		return []byte("version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes." + version + "]\n" + more + "\n")
	}
	tree := Tree{
		Root: File{
			Path: "/etc/containerd/config.toml",
			Data: text("runc", "sandbox_mode = \"shim\""),
		},
		Imports: []File{{
			Path: "/etc/containerd/conf.d/x.toml",
			Data: text("crun", "runtime_type = \"x\""),
		}},
	}
	for version, want := range map[string]string{
		"1.7.0": `{ containerd = { runtimes = { crun = { runtime_type = "x" } } } }`,
		"2.0.0": `{ containerd = { runtimes = { crun = { runtime_type = "x" }, runc = { sandboxer = "shim" } } } }`,
	} {
		s, _ := toml.Text(must.Get(readTree(tree, Daemon{version}))(t).cri, '"')
		check.Equal(t, s, want, "%s:", version)
	}
}

// TestTakeOutAnyFile uses what is not containerd's: the toolkit's own configuration.
func TestTakeOutAnyFile(t *testing.T) {
	before := []byte("# defaults\n#debug = \"x\"\n\n[cli]\nload = true\n[runtime]\nmodes = [\"a\"]\nlevel = 'info'\n")
	after := bytes.Replace(before, []byte("'info'"), []byte("'debug'"), 1)
	after = bytes.Replace(after, []byte("load = true\n"), nil, 1)
	after = append(after, "\n[features]\nx = 1\nempty = {}\n"...)
	for found, want := range map[string]string{
		"top = 1\n" + string(after): "top = 1\n" + string(before),
		"[features]\nx = 1\n  [features.empty]\n[runtime]\nlevel = 'debug'\nmodes = ['a']\nmore = 2\n[cli]\n": "[runtime]\nlevel = 'info'\nmodes = ['a']\nmore = 2\n[cli]\nload = true\n",
		"runtime = {level = 'debug', modes = ['a']}\ncli = {}\nfeatures = {x = 1, empty = {}}\n":              "runtime = {level = 'info', modes = ['a']}\ncli = { load = true }\n",
	} {
		got, _, err := engine.TakeOut(before, after, []byte(found))
		check.That(t, err == nil && string(got) == want, "got %v\n%s\nwant\n%s", err, got, want)
	}

	for found, want := range map[string]string{
		strings.Replace(string(after), "[cli]\n", "[cli]\nload = false\n", 1): "cli.load is false (line 5), gpuadm had removed it",
		strings.Replace(string(after), "'debug'", "'warn'", 1):                `runtime.level is "warn" (line 7), gpuadm had set "debug"`,
	} {
		got, left, err := engine.TakeOut(before, after, []byte(found))
		check.That(t, err == nil && len(left) == 1 && left[0] == want && !bytes.Contains(got, []byte("features")), "%s gives %s, left %q, %v", found, got, left, err)
	}

	comments := append(bytes.Clone(before), "# c\n"...)
	got, left, err := engine.TakeOut(before, comments, append([]byte("x = 1\n"), comments...))
	check.That(t, err == nil && left == nil && string(got) == "x = 1\n"+string(comments), "an edit of comments alone: %s %q %v", got, left, err)
}

// TestVersionOfRootWithImportsAlone: containerd 2.3.4 does not start with an imported file that is
// newer than a root of version 2.
func TestVersionOfRootWithImportsAlone(t *testing.T) {
	for version, want := range map[string]string{"1.7.24": "write version = 2 as the first line", "2.3.4": "write version = 3 as the first line"} {
		tree := Tree{
			Root: File{
				Path: "/etc/containerd/config.toml",
				Data: []byte("imports = [\"/etc/containerd/conf.d/*.toml\"]\n"),
			},
			Imports: []File{{
				Path: "/etc/containerd/conf.d/a.toml",
				Data: []byte("version = 3\n"),
			}},
		}
		_, err := Target(tree, Daemon{Version: version}, handlers()[0])
		says := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &says) && says.Try[0] == want, "%s: %v", version, err)
	}
}
