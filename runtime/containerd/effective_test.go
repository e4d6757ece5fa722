// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

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
		"disabled_plugins = 'cri'":                                    "disabled_plugins is not an array",
		"a" + strings.Repeat(".a", 200) + " = 1":                      "nested more than 100 deep",
	} {
		tree := Tree{Root: File{"/c.toml", []byte("version = 2\n" + in + "\n")}}
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

func TestEffective(t *testing.T) {
	root := File{"/etc/containerd/config.toml", []byte(`
version = 2
oom_score = -5
[timeouts]
a = "1s"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "a"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
sandbox_mode = "shim"
`)}
	drop := File{"/etc/containerd/conf.d/x.toml", []byte(`
version = 2
oom_score = 0
disabled_plugins = ["io.containerd.x.v1.y"]
[timeouts]
b = "2s"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
runtime_type = "x"
`)}
	tree := Tree{Root: root, Imports: []File{drop}}
	for version, want := range map[string]string{
		"1.7.0": `{ disabled_plugins = ["io.containerd.x.v1.y"], oom_score = -5, plugins = { "io.containerd.grpc.v1.cri" = { containerd = { runtimes = { crun = { runtime_type = "x" } } } } }, timeouts = { a = "1s", b = "2s" }, version = 2 }`,
		"2.0.0": `{ disabled_plugins = ["io.containerd.x.v1.y"], oom_score = -5, plugins = { "io.containerd.cri.v1.runtime" = { containerd = { runtimes = { crun = { runtime_type = "x" }, runc = { sandboxer = "shim" } } } }, "io.containerd.grpc.v1.cri" = { containerd = { runtimes = { crun = { runtime_type = "x" }, runc = { sandbox_mode = "shim" } } }, sandbox_image = "a" } }, timeouts = { a = "1s", b = "2s" }, version = 2 }`,
	} {
		got := must.Get(effective(tree, Daemon{version}))(t)
		s, _ := toml.Text(got, '"')
		check.That(t, s == want, "%s: got\n%s\nwant\n%s", version, s, want)
	}
	_, err := effective(Tree{Root: File{"/c", []byte("x")}}, Daemon{})
	check.That(t, err != nil, "what is no TOML was read")
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

// effective is the tables the daemon ends with, without its built-in defaults: all files merged as its version
// does it, the CRI plugin's runtime settings under the name that it reads.
func effective(t Tree, d Daemon) (map[string]any, error) {
	files, r, err := readAll(t, d)
	if err != nil {
		return nil, err
	}
	whole, _, _ := r.mergeAll(files)
	return whole, nil
}
