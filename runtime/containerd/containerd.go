// SPDX-License-Identifier: Apache-2.0

// Package containerd edits containerd's configuration: it makes the smallest change with exactly the wanted effect, and has containerd
// itself validate the result. owners.go has what it does where another program writes that configuration; ops.go which keys it sets.
package containerd

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Tree is a containerd configuration as found: the root file and what it imports, in the order the daemon reads them.
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

// Daemon is the containerd that reads the configuration. Version is as the daemon or its package says it
// ("1.7.24", "v2.1.5", "2.1.5~ds1"); "" is unknown.
type Daemon struct{ Version string }

// dropIn is the name of gpuadm's file in a folder that the root imports.
const dropIn = "99-gpuadm.toml"

// Target says which file gpuadm edits for the handler: the root, a file it imports, or gpuadm's drop-in in a
// folder that the root imports already. The answer is the same before and after gpuadm's edit.
func Target(t Tree, d Daemon, h engine.Handler) (string, error) {
	c, err := readCRI(t, d)
	if err != nil {
		return "", err
	}
	return c.targetPath(h)
}

// targetPath is Target for a tree that is parsed already.
func (c *criTree) targetPath(h engine.Handler) (string, error) {
	if err := validHandler(h); err != nil {
		return "", err
	}
	if i := c.target(h); i >= 0 {
		return c.files[i].path, nil
	}
	path, _ := c.dropInPath()
	return path, nil
}

// Edit changes found, the bytes of the file at path (nil: not there), so that the whole tree has the handler. It verifies that nothing else
// changes. Edit(Edit(x)) == Edit(x).
func Edit(t Tree, d Daemon, h engine.Handler, path string, found []byte) ([]byte, error) {
	if err := validHandler(h); err != nil {
		return nil, err
	}
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

// expand returns what the daemon reads of a file: the owner's script has replaced the variables in it.
func (t Tree) expand(data []byte) []byte {
	if len(t.Expands) == 0 || data == nil {
		return data
	}
	return []byte(strings.NewReplacer(t.Expands...).Replace(string(data)))
}

// withDropIn adds gpuadm's drop-in, which does not exist yet, at its place in the order in which the daemon reads.
func (t Tree) withDropIn(c *criTree, path string, found []byte) (Tree, int, error) {
	own, at := c.dropInPath()
	if own != path {
		return t, 0, fmt.Errorf("cannot edit %s: the daemon does not read it", path)
	}
	// An empty file takes the place of the missing one. at counts the root too, and Imports does not have it.
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
	if at := sideEffect(h, ops, before.whole, after.whole, nil); at != nil {
		return fmt.Errorf("internal error: the daemon would see %s changed", toml.ShowPath(at))
	}
	return nil
}

// sideEffect returns a path at which two configurations differ, and which the edit is not meant to change; nil if there is none. The edit is
// meant to change the version, the handler, and the keys of its ops, in any case. In the CRI plugin an empty table counts as none.
func sideEffect(h engine.Handler, ops []toml.Op, a, b any, at []string) []string {
	x, isTable := a.(map[string]any)
	y, isTableToo := b.(map[string]any)
	cri := len(at) > 1 && at[0] == "plugins" && slices.Contains([]string{criV2, criV3}, at[1])
	if !(isTable || cri && a == nil) || !(isTableToo || cri && b == nil) {
		if toml.Equal(a, b) {
			return nil
		}
		return slices.Clone(at)
	}
	at = slices.Grow(at, 1) // all keys share one array: there may be a thousand
	differs := func(key string) []string {
		at := append(at, key)
		switch {
		case len(at) == 1 && key == "version",
			cri && samePlace(at[2:], []string{"containerd", "runtimes", h.Name}),
			cri && slices.ContainsFunc(ops, func(op toml.Op) bool { return len(op.Path) > 2 && samePlace(at[2:], op.Path[2:]) }):
			return nil
		}
		return sideEffect(h, ops, x[key], y[key], at)
	}
	for key := range x {
		if at := differs(key); at != nil {
			return at
		}
	}
	for key := range y {
		if _, both := x[key]; !both {
			if at := differs(key); at != nil {
				return at
			}
		}
	}
	return nil
}

// samePlace says whether two paths in the CRI plugin's table are the same. Only in names of handlers do upper and lower case differ.
func samePlace(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		handler := i == 2 && strings.EqualFold(a[0], "containerd") && strings.EqualFold(a[1], "runtimes")
		if a[i] != b[i] && (handler || !strings.EqualFold(a[i], b[i])) {
			return false
		}
	}
	return true
}

// imports are the patterns that a file imports, made absolute.
func (f configFile) imports() ([]string, error) {
	key, v := toml.Field(f.tree, "imports")
	if v == nil {
		return nil, nil
	}
	list, ok := v.([]any)
	if !ok {
		return nil, f.refuse(RefusedShape, []string{key}, "imports is not an array of strings", `write imports = ["/etc/containerd/conf.d/*.toml"]`)
	}
	var out []string
	for _, e := range list {
		s, ok := e.(string)
		if !ok {
			return nil, f.refuse(RefusedShape, []string{key}, "imports is not an array of strings", `write imports = ["/etc/containerd/conf.d/*.toml"]`)
		}
		out = append(out, s)
	}
	return facts.Absolute(f.path, out, f.globs), nil
}

// validHandler says what is wrong with a handler.
func validHandler(h engine.Handler) error {
	if h.Name == "" || h.Binary == "" || !utf8.ValidString(h.Name+h.Binary) {
		return fmt.Errorf("cannot edit containerd's configuration: a handler needs a name and a binary, not %q and %q", h.Name, h.Binary)
	}
	return nil
}
