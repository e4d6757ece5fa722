// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gotoml "github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/runtime/engine"
	"github.com/gpuadm/gpuadm/test/must"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const corpusDir = "../../test/containerd/corpus"

const etc = "/etc/containerd"

type corpusCase struct {
	name string
	tree Tree
}

// corpus reads the shapes: a file is a root, a folder is a root with what it imports.
func corpus(t testing.TB) []corpusCase {
	t.Helper()
	entries := must.Get(os.ReadDir(corpusDir))(t)
	cases := []corpusCase{{"00-missing", Tree{Root: File{Path: etc + "/config.toml"}}}}
	for _, e := range entries {
		at := filepath.Join(corpusDir, e.Name())
		switch {
		case e.IsDir():
			cases = append(cases, corpusCase{e.Name(), corpusTree(t, at)})
		case strings.HasSuffix(e.Name(), ".toml"):
			cases = append(cases, corpusCase{strings.TrimSuffix(e.Name(), ".toml"), Tree{Root: File{
				Path: etc + "/config.toml",
				Data: read(t, at),
			}}})
		}
	}

	must.That(t, len(cases) >= 35, "only %d shapes in %s", len(cases), corpusDir)
	return cases
}

func corpusTree(t testing.TB, dir string) Tree {
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, p)
			files[path.Join(etc, rel)] = read(t, p)
		}
		return err
	})
	must.OK(t, err)
	return layTree(t, files)
}

// layTree orders files as the daemon reads them.
func layTree(t testing.TB, files map[string][]byte) Tree {
	tree := Tree{Root: File{Path: etc + "/config.toml", Data: files[etc+"/config.toml"]}}
	for i := 0; i <= len(tree.Imports); i++ { // it grows by what its files import
		f := append([]File{tree.Root}, tree.Imports...)[i]
		patterns := must.Get(patternsOf(f))(t)
		for _, p := range patterns {
			for _, name := range slices.Sorted(maps.Keys(files)) {
				known := slices.ContainsFunc(tree.Imports, func(f File) bool {
					return f.Path == name
				})
				if ok, _ := path.Match(p, name); ok && !known && name != tree.Root.Path {
					tree.Imports = append(tree.Imports, File{Path: name, Data: files[name]})
				}
			}
		}
	}

	return tree
}

// patternsOf is what a file imports, read apart from the code under test.
func patternsOf(f File) ([]string, error) {
	var c struct {
		Imports []string `toml:"imports"`
	}
	err := gotoml.Unmarshal(bytes.TrimPrefix(f.Data, []byte("\xef\xbb\xbf")), &c)
	return facts.Absolute(f.Path, c.Imports, ""), err
}

func read(t testing.TB, name string) []byte {
	b := must.Get(os.ReadFile(name))(t)
	if b == nil {
		b = []byte{}
	}
	return b
}

// withFile is the tree as the daemon finds it once data is at p.
func (t Tree) withFile(tb testing.TB, p string, data []byte) Tree {
	files := map[string][]byte{}
	for _, f := range append([]File{t.Root}, t.Imports...) {
		files[f.Path] = f.Data
	}
	files[p] = data
	return layTree(tb, files)
}

func daemons() []Daemon {
	var ds []Daemon
	for _, v := range []string{"1.6.36", "1.7.24", "2.0.4", "2.1.5~ds1", "2.3.4", "v2.4.2", ""} {
		ds = append(ds, Daemon{v})
	}
	return ds
}

func handlers() []engine.Handler {
	h := engine.Handler{Name: "nvidia", Binary: "/usr/bin/nvidia-container-runtime"}
	all := h
	all.Default, all.CDI, all.Overrides = true, true, true
	return []engine.Handler{h, all}
}

// leaves are the values of a file, each with its path and type: an own way to compare, apart from
// the code under test.
func leaves(t testing.TB, data []byte) map[string]string {
	t.Helper()
	var tree map[string]any
	err := gotoml.Unmarshal(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), &tree)
	must.That(t, err == nil, "not TOML: %v\n%s", err, data)
	out := map[string]string{}
	flatten(out, "", tree)
	return out
}

func flatten(out map[string]string, at string, v any) {
	m, ok := v.(map[string]any)
	if !ok {
		out[at] = fmt.Sprintf("%T %#v", v, v)
		return
	}
	for k, e := range m {
		flatten(out, at+"\x00"+k, e)
	}
}

// textDiff shows which lines went and came.
func textDiff(before, after []byte) string {
	var out strings.Builder
	show := func(sign string, lines [][]byte) {
		for _, l := range lines {
			s := strings.TrimSuffix(string(l), "\n")
			if s == string(l) {
				s += "⏎̸"
			}
			s = strings.ReplaceAll(s, "\r", "␍")
			out.WriteString(strings.TrimRight(sign+s, " ") + "\n")
		}
	}

	x, y := splitLines(before), splitLines(after)
	for _, h := range diffExact(x, y) {
		fmt.Fprintf(&out, "@@ line %d\n", h.a0+1)
		show("-", x[h.a0:h.a1])
		show("+", y[h.b0:h.b1])
	}

	return out.String()
}

// hunk says that lines [a0,a1) of one text became lines [b0,b1) of another.
type hunk struct{ a0, a1, b0, b1 int }

func splitLines(b []byte) [][]byte {
	lines := bytes.SplitAfter(b, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// diffExact compares texts with line breaks compared too, by the plain quadratic way.
func diffExact(a, b [][]byte) []hunk {
	n, m := len(a), len(b)
	lcs := make([][]int, n+1)
	for i := range lcs {
		lcs[i] = make([]int, m+1)
	}
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			if bytes.Equal(a[i], b[j]) {
				lcs[i][j] = lcs[i+1][j+1] + 1
			} else {
				lcs[i][j] = max(lcs[i+1][j], lcs[i][j+1])
			}
		}
	}

	var out []hunk
	for i, j := 0, 0; i < n || j < m; {
		if i < n && j < m && bytes.Equal(a[i], b[j]) {
			i++
			j++
			continue
		}

		h := hunk{i, i, j, j}
		for i < n || j < m {
			if i < n && j < m && bytes.Equal(a[i], b[j]) {
				break
			}
			if j < m && (i == n || lcs[i][j+1] >= lcs[i+1][j]) {
				j++
			} else {
				i++
			}
		}

		h.a1, h.b1 = i, j
		out = append(out, h)
	}

	return out
}
