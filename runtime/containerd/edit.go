// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Edit changes found, the bytes of the file at path (nil: not there), so that the whole tree has
// the handler. It verifies that nothing else changes. Edit(Edit(x)) == Edit(x).
func Edit(t Tree, d Daemon, h engine.Handler, path string, found []byte) ([]byte, error) {
	t = t.with(path, found)
	before, err := readTree(t, d)
	if err != nil {
		return nil, err
	}
	if h.Owned && before.missing(h) == "" {
		return found, nil
	}

	i := before.index(path)
	if i < 0 {
		t, i, err = t.withDropIn(before, path, found)
		if err != nil {
			return nil, err
		}
		before, err = readTree(t, d)
		if err != nil {
			return nil, err
		}
	}

	ops := before.ops(i, h)
	if len(ops) == 0 {
		return found, nil
	}
	edited, err := t.Texts.Edit(found, ops)
	if err != nil {
		return nil, fmt.Errorf("cannot edit %s: %w", path, err)
	}

	after, err := readTree(t.with(path, edited), d)
	if err != nil {
		return nil, fmt.Errorf("cannot edit %s: internal error: the result would be refused: %w", path, err)
	}
	if err := verifyEffect(before, after, h, ops); err != nil {
		return nil, fmt.Errorf("cannot edit %s: %w", path, err)
	}
	return edited, nil
}

// withDropIn adds gpuadm's drop-in, which does not exist yet, at its place in the order in which
// the daemon reads.
func (t Tree) withDropIn(c *criTree, path string, found []byte) (Tree, int, error) {
	dropInPath, place := c.dropInPath()
	if dropInPath != path {
		return t, 0, fmt.Errorf("cannot edit %s: the daemon does not read it", path)
	}

	// An empty file takes the place of the missing one. place counts the root too, and Imports does
	// not have it.
	if found == nil {
		found = []byte{}
	}
	imports := slices.DeleteFunc(slices.Clone(t.Imports), func(f File) bool {
		return f.Path == path
	})
	t.Imports = slices.Insert(imports, place-1, File{Path: path, Data: found})
	return t, place, nil
}

// verifyEffect compares how the daemon reads the tree before and after the edit.
func verifyEffect(before, after *criTree, h engine.Handler, ops []toml.Op) error {
	if i := after.target(h); i >= 0 {
		if left := after.ops(i, h); len(left) > 0 {
			key := strings.Join(left[0].Path, ".")
			return fmt.Errorf("%s would still be wrong: %s wins", key, after.files[i].path)
		}
	}

	if changed := sideEffect(before.cri, after.cri, ops); changed != nil {
		return fmt.Errorf("internal error: the daemon would see %s changed", toml.ShowPath(changed))
	}
	return nil
}

// sideEffect is a setting of the CRI plugin that the daemon would see changed, and that no op
// changes; nil if there is none.
func sideEffect(before, after map[string]any, ops []toml.Op) []string {
	for _, c := range toml.Diff(before, after, nil) {
		if isNone(c.Old) && isNone(c.New) {
			continue
		}
		changes := func(op toml.Op) bool {
			return len(op.Path) > 2 && toml.HasPrefix(c.Path, op.Path[2:])
		}
		if !slices.ContainsFunc(ops, changes) {
			return c.Path
		}
	}
	return nil
}
