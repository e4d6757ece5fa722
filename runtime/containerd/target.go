// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/runtime/engine"
)

// dropIn is the name of gpuadm's file in a folder that the root imports.
const dropIn = "99-gpuadm.toml"

// Target says which file gpuadm edits for the handler: the root, a file it imports, or gpuadm's
// drop-in in a folder that the root imports already. The answer is the same before and after
// gpuadm's edit.
func Target(t Tree, d Daemon, h engine.Handler) (string, error) {
	c, err := readTree(t, d)
	if err != nil {
		return "", err
	}
	if i := c.target(h); i >= 0 {
		return c.files[i].path, nil
	}
	path, _ := c.dropInPath()
	return path, nil
}

// index returns the place of a file in the tree, -1 if it is not in it.
func (c *criTree) index(path string) int {
	return slices.IndexFunc(c.files, func(f configFile) bool { return f.path == path })
}

// target is the index of the file to edit, -1 for a drop-in that does not exist yet. It depends on
// which file has which settings, and not on their values: so the target is the same after the edit.
func (c *criTree) target(h engine.Handler) int {
	deciding := c.decidingFile(h)
	path, place := c.dropInPath()
	if path == "" || c.hasEntryOutside(path, h.Name) {
		return max(deciding, 0) // an entry that an operator wrote is fixed in its own file
	}

	i := c.index(path)
	switch {
	case i >= 0 && deciding <= i:
		return i
	case i < 0 && deciding < place:
		return -1
	}

	return max(deciding, 0)
}

// decidingFile is the index of the file whose settings for the handler count, -1 if no file has
// any.
func (c *criTree) decidingFile(h engine.Handler) int {
	last := -1
	for i, f := range c.files {
		if c.decides(f, h) {
			last = i
		}
	}

	return last
}

// cdiFile is the file that decides whether CDI is on; the root if no file says.
func (c *criTree) cdiFile() string {
	return c.files[max(c.decidingFile(engine.Handler{CDI: true}), 0)].path
}

// decides says whether a file has a setting for the handler, which counts if no later file has it.
func (c *criTree) decides(f configFile, h engine.Handler) bool {
	if c.reader.merge == mergeWhole {
		return f.plugin(c.effectiveName()) != nil // the table hides those of all files before it
	}
	if c.hasEntry(f, h.Name) {
		return true
	}
	if h.Default && c.has(f, "containerd", "default_runtime_name") {
		return true
	}
	return h.CDI && c.reader.cdi != cdiFixed && c.has(f, "enable_cdi")
}

// hasEntryOutside says whether a file other than the one at path has an entry of the handler.
func (c *criTree) hasEntryOutside(path, handler string) bool {
	return slices.ContainsFunc(c.files, func(f configFile) bool {
		return f.path != path && c.hasEntry(f, handler)
	})
}

// dropInPath is the path of gpuadm's drop-in, in the last folder of which the root imports all
// files, and its place in the order of reading. "" where the root imports no folder, since no
// version reads conf.d by default; and where the daemon does not merge key by key (before 2.0,
// measured).
func (c *criTree) dropInPath() (path string, place int) {
	root := c.files[0]
	if c.reader.merge == mergeWhole || !c.reader.known || root.empty {
		return "", 0
	}

	patterns := root.imports()
	last := -1
	for i, pattern := range patterns {
		folder, name := filepath.Split(pattern)
		if strings.ContainsAny(folder, "*?[\\") || !strings.Contains(name, "*") {
			continue
		}
		if matches(name, dropIn) {
			path = folder + dropIn
			last = i
		}
	}

	place = 1
	for _, f := range c.files[1:] {
		i := slices.IndexFunc(patterns, func(pattern string) bool {
			return matches(pattern, f.path)
		})
		if i >= 0 && (i < last || i == last && f.path < path) {
			place++
		}
	}

	return path, place
}

// matches says whether a name matches a pattern; a pattern that is not valid matches nothing.
func matches(pattern, name string) bool {
	ok, err := filepath.Match(pattern, name)
	return err == nil && ok
}
