// SPDX-License-Identifier: Apache-2.0

// Package containerd edits containerd's configuration: it makes the smallest change with exactly
// the wanted effect, and has containerd itself validate the result. owners.go has what it does
// where another program writes that configuration; ops.go which keys it sets.
package containerd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Tree is a containerd configuration as found: the root file and what it imports, in the order the
// daemon reads them.
type Tree struct {
	Root    File
	Imports []File
	Globs   string // where relative imports with a star start, see facts.Globs

	Expands []string // pairs for strings.NewReplacer: what the owner's script puts in place of variables in the files

	Texts *toml.Texts // files that were parsed already
}

// File is one configuration file. Data is nil when it does not exist.
type File struct {
	Path string
	Data []byte
}

// Daemon is the containerd that reads the configuration. Version is as the daemon or its package
// says it ("1.7.24", "v2.1.5", "2.1.5~ds1"); "" is unknown.
type Daemon struct{ Version string }

// dropIn is the name of gpuadm's file in a folder that the root imports.
const dropIn = "99-gpuadm.toml"

// Target says which file gpuadm edits for the handler: the root, a file it imports, or gpuadm's
// drop-in in a folder that the root imports already. The answer is the same before and after
// gpuadm's edit.
func Target(t Tree, d Daemon, h engine.Handler) (string, error) {
	c, err := readCRI(t, d)
	if err != nil {
		return "", err
	}
	if i := c.target(h); i >= 0 {
		return c.files[i].path, nil
	}
	path, _ := c.dropInPath()
	return path, nil
}

// Edit changes found, the bytes of the file at path (nil: not there), so that the whole tree has
// the handler. It verifies that nothing else changes. Edit(Edit(x)) == Edit(x).
func Edit(t Tree, d Daemon, h engine.Handler, path string, found []byte) ([]byte, error) {
	t = t.with(path, found)
	before, err := readCRI(t, d)
	if err != nil {
		return nil, err
	}
	if h.Owned && before.lacks(h) == "" {
		return found, nil
	}
	i := before.index(path)
	if i < 0 {
		if t, i, err = t.withDropIn(before, path, found); err != nil {
			return nil, err
		}
		if before, err = readCRI(t, d); err != nil {
			return nil, err
		}
	}
	ops, err := before.ops(i, h)
	if err != nil {
		return nil, err
	}
	if len(ops) == 0 {
		return found, nil
	}
	out, err := t.Texts.Edit(found, ops)
	if err != nil {
		return nil, fmt.Errorf("cannot edit %s: %w", path, err)
	}
	after, err := readCRI(t.with(path, out), d)
	if err != nil {
		return nil, fmt.Errorf("cannot edit %s: internal error: the result would be refused: %w", path, err)
	}
	if err := verifyEffect(before, after, h, ops); err != nil {
		return nil, fmt.Errorf("cannot edit %s: %w", path, err)
	}
	return out, nil
}

// with puts data in place of what the tree holds for path, if it holds that file at all.
func (t Tree) with(path string, data []byte) Tree {
	if t.Root.Path == path {
		t.Root.Data = data
		return t
	}
	t.Imports = slices.Clone(t.Imports)
	for i := range t.Imports {
		if t.Imports[i].Path == path {
			t.Imports[i].Data = data
		}
	}
	return t
}

// expand returns what the daemon reads of a file: the owner's script has replaced the variables in
// it.
func (t Tree) expand(data []byte) []byte {
	if len(t.Expands) == 0 || data == nil {
		return data
	}
	return []byte(strings.NewReplacer(t.Expands...).Replace(string(data)))
}

// withDropIn adds gpuadm's drop-in, which does not exist yet, at its place in the order in which
// the daemon reads.
func (t Tree) withDropIn(c *criTree, path string, found []byte) (Tree, int, error) {
	own, at := c.dropInPath()
	if own != path {
		return t, 0, fmt.Errorf("cannot edit %s: the daemon does not read it", path)
	}
	// An empty file takes the place of the missing one. at counts the root too, and Imports does
	// not have it.
	imports := slices.DeleteFunc(slices.Clone(t.Imports), func(f File) bool { return f.Path == path })
	if found == nil {
		found = []byte{}
	}
	t.Imports = slices.Insert(imports, at-1, File{path, found})
	return t, at, nil
}

// verifyEffect compares how the daemon reads the tree before and after the edit.
func verifyEffect(before, after *criTree, h engine.Handler, ops []toml.Op) error {
	if i := after.target(h); i >= 0 {
		left, err := after.ops(i, h)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("%s would still be wrong: %s wins", strings.Join(left[0].Path, "."), after.files[i].path)
		}
	}
	if at := sideEffect(before.cri, after.cri, ops); at != nil {
		return fmt.Errorf("internal error: the daemon would see %s changed", toml.ShowPath(at))
	}
	return nil
}

// sideEffect is a setting of the CRI plugin that the daemon would see changed, and that no op
// changes; nil if there is none.
func sideEffect(before, after map[string]any, ops []toml.Op) []string {
	for _, c := range toml.Diff(before, after, nil) {
		meant := func(op toml.Op) bool { return len(op.Path) > 2 && toml.HasPrefix(c.Path, op.Path[2:]) }
		if !(nothing(c.Old) && nothing(c.New)) && !slices.ContainsFunc(ops, meant) {
			return c.Path
		}
	}
	return nil
}

// imports are the patterns that a file imports, made absolute.
func (f configFile) imports() []string {
	_, v := toml.Field(f.tree, "imports")
	list, _ := v.([]any)
	var out []string
	for _, e := range list {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return facts.Absolute(f.path, out, f.globs)
}
