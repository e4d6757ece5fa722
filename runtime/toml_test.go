// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
)

func TestEditTOML(t *testing.T) {
	set := func(v any, path ...string) tomlOp { return tomlOp{path, v} }
	for name, c := range map[string]struct {
		before string
		op     tomlOp
		after  string
	}{
		"value":                    {"a = 1 # x\n", set(int64(2), "a"), "a = 2 # x\n"},
		"value of another type":    {"a = [\n 1, # y\n]\n", set("z", "a"), "a = \"z\"\n"},
		"quotation mark kept":      {"a = 'x'\n", set("y", "a"), "a = 'y'\n"},
		"quotation mark not kept":  {"a = 'x'\n", set("it's", "a"), "a = \"it's\"\n"},
		"control character":        {"a = 'x'\n", set("\x01\"\\\n", "a"), "a = \"\\u0001\\\"\\\\\\u000A\"\n"},
		"top, no keys":             {"# c\n[t]\n", set(true, "a"), "a = true\n\n# c\n[t]\n"},
		"top, after keys":          {"b = 1\n\n[t]\nc = 2\n", set(true, "a"), "b = 1\na = true\n\n[t]\nc = 2\n"},
		"key of a table":           {"[t]\n  b = 1\n\n[u]\n", set(1.5, "t", "a"), "[t]\n  b = 1\n  a = 1.5\n\n[u]\n"},
		"key of an empty table":    {"[t]\n[u]\n  x = 1\n", set(1.0, "t", "a"), "[t]\n  a = 1.0\n[u]\n  x = 1\n"},
		"key of no table":          {"", set("x", "t", "u", "a b"), "[t.u]\n  \"a b\" = \"x\"\n"},
		"upper table":              {"[t.u]\nx = 1\n", set("x", "t", "a"), "[t]\na = \"x\"\n\n[t.u]\nx = 1\n"},
		"inline":                   {"t = {a = 1}\n", set("x", "t", "b"), "t = {a = 1, b = \"x\"}\n"},
		"inline, empty":            {"t = {}\n", set("x", "t", "b"), "t = { b = \"x\" }\n"},
		"inline, comment in it":    {"t = { # c\n}\n", set("x", "t", "b"), "t = { b = \"x\"  # c\n}\n"},
		"inline, lines":            {"t = {\n  a = 1, # c\n}\n", set("x", "t", "b"), "t = {\n  a = 1, b = \"x\", # c\n}\n"},
		"inline, dotted in it":     {"t = {u.a = 1}\n", set("x", "t", "u", "b"), "t = {u.a = 1, u.b = \"x\"}\n"},
		"dotted":                   {"t.a = 1\nx = 1\n", set("x", "t", "b"), "t.a = 1\nt.b = \"x\"\nx = 1\n"},
		"dotted, deeper":           {"[s]\n t.a = 1\n", set(tomlTable{{"c", "x"}, {"d", tomlTable{}}}, "s", "t", "b"), "[s]\n t.a = 1\n t.b.c = \"x\"\n t.b.d = {}\n"},
		"away":                     {"a = 1\nb = 2 # c\nc = 3\n", set(nil, "b"), "a = 1\nc = 3\n"},
		"away, missing":            {"a = 1\n", set(nil, "b"), "a = 1\n"},
		"away, lines":              {"b = [\n 1,\n]\nc = 3\n", set(nil, "b"), "c = 3\n"},
		"away, inline first":       {"t = {a = 1, b = 2}\n", set(nil, "t", "a"), "t = {b = 2}\n"},
		"away, inline last":        {"t = {a = 1, b = 2}\n", set(nil, "t", "b"), "t = {a = 1}\n"},
		"away, inline only":        {"t = {a = 1}\n", set(nil, "t", "a"), "t = {}\n"},
		"date":                     {"a = 1\n", set(toml.LocalDate{Year: 2026, Month: 1, Day: 2}, "b"), "a = 1\nb = 2026-01-02\n"},
		"time":                     {"a = 1\n", set(time.Date(2026, 1, 2, 3, 4, 5, 6000000, time.UTC), "b"), "a = 1\nb = 2026-01-02T03:04:05.006Z\n"},
		"not a number":             {"a = nan\n", set(math.Inf(-1), "b"), "a = nan\nb = -inf\n"},
		"big number":               {"a = 1\n", set(1e300, "b"), "a = 1\nb = 1e+300\n"},
		"array of tables":          {"a = 1\n", set([]any{map[string]any{"x": int64(1)}, int64(2)}, "b"), "a = 1\nb = [{ x = 1 }, 2]\n"},
		"same name below an array": {"[[t.x]]\na = 1\n[t.x.u]\nb = 2\n", set("x", "t", "u", "b"), "[[t.x]]\na = 1\n[t.x.u]\nb = 2\n[t.u]\nb = \"x\"\n"},
		"comment like a table":     {"a = '''\n# x\n[t]\n'''\n[t]\nb = 1\n", set("x", "t", "c"), "a = '''\n# x\n[t]\n'''\n[t]\nb = 1\nc = 'x'\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := editTOML([]byte(c.before), []tomlOp{c.op})
			if err != nil || string(got) != c.after {
				t.Errorf("got %v\n%s\nwant\n%s", err, got, c.after)
			}
		})
	}
}

func TestEditTOMLCannot(t *testing.T) {
	for name, c := range map[string]struct {
		before string
		op     tomlOp
	}{
		"through a value":  {"a = 1\n", tomlOp{[]string{"a", "b"}, "x"}},
		"through an array": {"[[a]]\nb = 1\n", tomlOp{[]string{"a", "c"}, "x"}},
		"over a table":     {"[a]\nb = 1\n", tomlOp{[]string{"a"}, "x"}},
		"a table away":     {"[a]\nb = 1\n", tomlOp{[]string{"a"}, nil}},
		"not UTF-8":        {"a = 1\n", tomlOp{[]string{"b"}, "\xff"}},
		"odd type":         {"a = 1\n", tomlOp{[]string{"b"}, struct{}{}}},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := editTOML([]byte(c.before), []tomlOp{c.op}); err == nil || out != nil {
				t.Errorf("got %q, want an error", out)
			}
		})
	}
}

// TestProofCatches holds the proof against edits of the text that do more or less than was asked.
func TestProofCatches(t *testing.T) {
	a, _ := tomlTree([]byte("a = 1\nb = 1.0\n"))
	for _, other := range []string{"a = 1.0\nb = 1.0\n", "a = 1\nb = 1.0\nc = {}\n", "a = 1\n", "a = '1'\nb = 1.0\n"} {
		b, err := tomlTree([]byte(other))
		if err != nil {
			t.Fatal(err)
		}
		if tomlEqual(a, b) || tomlEqual(b, a) {
			t.Errorf("%q passes for %v", other, a)
		}
	}
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
		"disabled_plugins = 'cri'":                                    "disabled_plugins is not an array",
		"a" + strings.Repeat(".a", 200) + " = 1":                      "nested more than 100 deep",
	} {
		tree := Tree{Root: File{"/c.toml", []byte("version = 2\n" + in + "\n")}}
		for _, d := range daemons() {
			var r *Refusal
			_, err := Target(tree, d, handlers()[1])
			if !errors.As(err, &r) || !strings.Contains(r.Reason, want) {
				t.Errorf("%s on %q: got %v, want %s", in, d.Version, err, want)
			} else if r.Line != 2 && r.Code == RefusedShape {
				t.Errorf("%s: line %d, want 2", in, r.Line)
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
		got, err := effective(tree, Daemon{version})
		if err != nil {
			t.Fatal(err)
		}
		if s, _ := tomlText(got, '"'); s != want {
			t.Errorf("%s: got\n%s\nwant\n%s", version, s, want)
		}
	}
	if _, err := effective(Tree{Root: File{"/c", []byte("x")}}, Daemon{}); err == nil {
		t.Error("what is no TOML was read")
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
		got, _, err := TakeOut(before, after, []byte(found))
		if err != nil || string(got) != want {
			t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
		}
	}
	for found, want := range map[string]string{
		strings.Replace(string(after), "[cli]\n", "[cli]\nload = false\n", 1): "cli.load is false (line 5), gpuadm had removed it",
		strings.Replace(string(after), "'debug'", "'warn'", 1):                `runtime.level is "warn" (line 7), gpuadm had set "debug"`,
	} {
		if got, left, err := TakeOut(before, after, []byte(found)); err != nil || len(left) != 1 || left[0] != want || bytes.Contains(got, []byte("features")) {
			t.Errorf("%s gives %s, left %q, %v", found, got, left, err)
		}
	}
	comments := append(bytes.Clone(before), "# c\n"...)
	if got, left, err := TakeOut(before, comments, append([]byte("x = 1\n"), comments...)); err != nil || left != nil || string(got) != "x = 1\n"+string(comments) {
		t.Errorf("an edit of comments alone: %s %q %v", got, left, err)
	}
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
