// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// criTree is a configuration as one daemon reads it.
type criTree struct {
	files   []configFile // the root first, then what it imports
	reader  criReader
	raw     map[string]any // the plugins of all files, merged and not migrated
	version int64          // by which the daemon reads raw
	cri     map[string]any // the CRI plugin's table, merged and migrated
}

// readEngine is an engine's configuration as the engine reads it.
func readEngine(e facts.Engine) (*criTree, error) {
	return readTree(treeOf(e), Daemon{Version: e.Version})
}

// readTree reads a configuration as a daemon does. It refuses a configuration that gpuadm
// cannot edit.
func readTree(t Tree, d Daemon) (*criTree, error) {
	files, err := readFiles(t)
	if err != nil {
		return nil, err
	}
	reader := newReader(d, files)
	for i := range files {
		if err := checkFile(reader, files, i); err != nil {
			return nil, err
		}
	}

	if err := checkImports(reader, files, t); err != nil {
		return nil, err
	}

	root := &files[0]
	if root.empty {
		root.version = reader.create
	}
	c := &criTree{files: files, reader: reader}
	var plugins map[string]any
	plugins, c.raw, c.version = reader.mergeAll(files)
	for i := range files {
		if files[i].empty {
			files[i].version = root.version
		}
	}

	if err := c.checkNames(); err != nil {
		return nil, err
	}
	c.cri, _ = plugins[c.effectiveName()].(map[string]any)
	return c, nil
}

// readFiles reads the files that exist; the root is always the first.
func readFiles(t Tree) ([]configFile, error) {
	var files []configFile
	for i, f := range t.files() {
		if i > 0 && f.Data == nil {
			continue
		}
		c, err := readFile(f, t)
		if err != nil {
			return nil, err
		}
		files = append(files, c)
	}

	return files, nil
}

// effectiveName is the plugin name under which mergeAll leaves the CRI plugin's table.
func (c *criTree) effectiveName() string {
	if c.reader.merge == mergeWhole {
		return criV2
	}
	return criV3
}

// namesIn lists the plugin names under which the daemon reads runtimes in a file. The
// first name wins.
func (c *criTree) namesIn(f configFile) []string {
	switch c.reader.merge {
	case mergeWhole:
		return []string{criV2}
	case mergeThenMigrate:
		if c.version >= 3 {
			return []string{criV3}
		}
	case migrateThenMerge:
		if f.version >= 4 {
			return []string{criV3}
		}
	}
	return []string{criV3, criV2}
}

// checkNames refuses a tree in which all CRI settings have a name that this daemon does not read.
func (c *criTree) checkNames() error {
	var unread error
	for _, f := range c.files {
		for _, name := range []string{criV3, criV2} {
			table := f.plugin(name)
			if table == nil {
				continue
			}
			if slices.Contains(c.namesIn(f), name) {
				return nil
			}

			// In version 3 the old name is the plugin's server part: the daemon ignores runtimes
			// there.
			_, runtimes := toml.Field(table, "containerd")
			if name == criV2 && runtimes == nil && f.version >= 3 {
				continue
			}
			if unread == nil {
				unread = c.unreadName(f, name)
			}
		}
	}

	return unread
}

// unreadName says that the daemon does not read a plugin name in a file.
func (c *criTree) unreadName(f configFile, name string) error {
	key := toml.KeyText(name, '"')
	reason := fmt.Sprintf("%s does not read [plugins.%s] in a file of version %d", c.reader.daemon, key, f.version)
	fix := fmt.Sprintf("write [plugins.%q] for [plugins.%q]", criV3, name)
	if name == criV3 && c.reader.merge == mergeWhole {
		fix = fmt.Sprintf("write [plugins.%q] for [plugins.%q], or install containerd 2.0 or later", criV2, criV3)
	}
	return f.refuse(RefusedNames, []string{f.key("plugins"), name}, reason, fix)
}

// has says whether a file has a setting of the CRI plugin, by any plugin name that the daemon
// reads.
func (c *criTree) has(f configFile, names ...string) bool {
	last := len(names) - 1
	for _, plugin := range c.namesIn(f) {
		table := toml.Sub(f.plugin(plugin), names[:last]...)
		if _, value := toml.Field(table, names[last]); value != nil {
			return true
		}
	}

	return false
}

// hasEntry says whether a file has an entry of a handler.
func (c *criTree) hasEntry(f configFile, handler string) bool {
	for _, plugin := range c.namesIn(f) {
		runtimes := toml.Sub(f.plugin(plugin), "containerd", "runtimes")
		if _, found := runtimes[handler]; found {
			return true
		}
	}
	return false
}

// runtimes is the table of handlers' entries.
func (c *criTree) runtimes() map[string]any {
	return toml.Sub(c.cri, "containerd", "runtimes")
}

// entry returns a handler's table; nil if there is none.
func (c *criTree) entry(handler string) map[string]any {
	entry, _ := c.runtimes()[handler].(map[string]any)
	return entry
}

// defaultName is the handler of pods that name none.
func (c *criTree) defaultName() string {
	if name := toml.String(toml.Sub(c.cri, "containerd"), "default_runtime_name"); name != "" {
		return name
	}
	return "runc"
}

// unread says, by file, which settings of the CRI plugin the daemon starts without.
func (c *criTree) unread() []string {
	var list []string
	skipsOld := c.reader.merge == mergeThenMigrate && c.version >= 3
	for _, f := range c.files {
		isOld := f.version == 2 && f.plugin(criV2) != nil
		if skipsOld && isOld {
			list = append(list, fmt.Sprintf(
				"%s has [plugins.%q], which %s does not read beside an imported file of version %d",
				f.path, criV2, c.reader.daemon, c.version,
			))
		}
	}

	if c.reader.merge == mergeWhole && c.reader.known {
		list = append(list, c.replaced()...)
	}
	return list
}

// replaced says which settings are lost since a later file replaces the CRI plugin's table as a
// whole.
func (c *criTree) replaced() []string {
	last := -1
	for i, f := range c.files {
		if f.plugin(criV2) != nil {
			last = i
		}
	}

	if last < 0 {
		return nil
	}

	var list []string
	winner := c.files[last]
	for _, f := range c.files[:last] {
		for _, change := range toml.Diff(f.plugin(criV2), winner.plugin(criV2), nil) {
			if change.New != nil || isZero(change.Old) {
				continue
			}
			list = append(list, fmt.Sprintf("%s sets %s, which %s does not read: [plugins.%q] of %s replaces it as a whole",
				f.path, toml.ShowPath(change.Path), c.reader.daemon, criV2, winner.path))
			break
		}
	}

	return list
}

// missingImport is a file that this one imports, by its name or by a pattern, and that cannot be
// opened; "" if all can.
func (f configFile) missingImport(files []configFile, t Tree) string {
	for _, name := range f.imports() {
		exists := func(other configFile) bool { return other.path == name }
		if !strings.Contains(name, "*") {
			if !slices.ContainsFunc(files, exists) {
				return name
			}
			continue
		}

		leadsNowhere := func(other File) bool {
			return other.Data == nil && matches(name, other.Path)
		}
		if i := slices.IndexFunc(t.Imports, leadsNowhere); i >= 0 {
			return t.Imports[i].Path
		}
	}
	return ""
}
