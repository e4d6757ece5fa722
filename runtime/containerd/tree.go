// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// criTree is a configuration as one daemon reads it.
type criTree struct {
	files   []configFile // the root first, then what it imports
	reader  criReader
	raw     map[string]any // the plugins of all files, merged and not migrated
	version int64
	cri     map[string]any // the CRI plugin's table, merged and migrated
}

// readAll reads the files that are there; the root is always the first.
func readAll(t Tree, d Daemon) ([]configFile, criReader, error) {
	var files []configFile
	for i, f := range append([]File{t.Root}, t.Imports...) {
		if i > 0 && f.Data == nil {
			continue
		}
		c, err := readFile(f, t)
		if err != nil {
			return nil, criReader{}, err
		}
		files = append(files, c)
	}
	r := newReader(d, files)
	for i, f := range files {
		if err := f.checkShape(r, f.tree, shape(), nil); err != nil {
			return nil, r, err
		}
		for _, check := range []func(criReader) error{f.checkDisabled, f.checkOld, f.checkStart} {
			if err := check(r); err != nil {
				return nil, r, err
			}
		}
		if err := f.checkVersion(r, i == 0); err != nil {
			return nil, r, err
		}
		if key, _ := toml.Field(f.tree, "version"); r.rootLeads && files[0].stated && f.version > files[0].version {
			return nil, r, f.refuse(RefusedStart, []string{key}, fmt.Sprintf("%s does not start with an imported file of version %d, newer than version %d of %s", r.daemon, f.version, files[0].version, files[0].path),
				fmt.Sprintf("write it in version %d, or update containerd to 2.3.7 or newer", files[0].version))
		}
		if missing := f.dangling(files); r.known && r.merge == mergeWhole && missing != "" {
			return nil, r, f.refuse(RefusedStart, []string{"imports"}, fmt.Sprintf("it imports %s, which is not there, and %s does not start without it", missing, r.daemon), "take it out of imports, or write the file")
		}
	}
	return files, r, nil
}

// dangling is a missing file that this one imports by its name; "" if none is missing.
func (f configFile) dangling(files []configFile) string {
	for _, name := range f.imports() {
		if !strings.Contains(name, "*") && !slices.ContainsFunc(files, func(o configFile) bool { return o.path == name }) {
			return name
		}
	}
	return ""
}

// unread says, by file, which settings of the CRI plugin the daemon starts without.
func (c *criTree) unread() (list []string) {
	last := -1
	for i, f := range c.files {
		if f.plugin(criV2) != nil {
			last = i
		}
		if missing := f.dangling(c.files); missing != "" {
			list = append(list, fmt.Sprintf("%s imports %s, which is not there", f.path, missing))
		}
		if c.reader.merge == mergeThenMigrate && c.version >= 3 && f.version == 2 && f.plugin(criV2) != nil {
			list = append(list, fmt.Sprintf("%s has [plugins.%q], which %s does not read beside an imported file of version %d", f.path, criV2, c.reader.daemon, c.version))
		}
	}
	for _, f := range c.files[:max(last, 0)] {
		changes := toml.Diff(f.plugin(criV2), c.files[last].plugin(criV2), nil)
		lost := slices.IndexFunc(changes, func(d toml.Change) bool { return d.New == nil && !isZero(d.Old) })
		if c.reader.merge == mergeWhole && c.reader.known && lost >= 0 {
			list = append(list, fmt.Sprintf("%s sets %s, which %s does not read: [plugins.%q] of %s replaces it as a whole", f.path, toml.ShowPath(changes[lost].Path), c.reader.daemon, criV2, c.files[last].path))
		}
	}
	return list
}

// asRead is an engine's configuration as the engine reads it.
func asRead(e facts.Engine) (*criTree, error) { return readCRI(treeOf(e), Daemon{Version: e.Version}) }

func readCRI(t Tree, d Daemon) (*criTree, error) {
	files, r, err := readAll(t, d)
	if err != nil {
		return nil, err
	}
	if files[0].empty {
		files[0].version = r.create
	}
	c := &criTree{files: files, reader: r}
	plugins, raw, version := r.mergeAll(files)
	c.raw, c.version = raw, version
	for i := range files[1:] {
		if f := &files[i+1]; f.empty {
			f.version = files[0].version
		}
	}
	if err := c.checkNames(); err != nil {
		return nil, err
	}
	c.cri, _ = plugins[c.effectiveName()].(map[string]any)
	return c, nil
}

// effectiveName is the plugin name under which mergeAll leaves the CRI plugin's table.
func (c *criTree) effectiveName() string {
	if c.reader.merge == mergeWhole {
		return criV2
	}
	return criV3
}

// namesIn lists the plugin names under which the daemon reads runtimes in a file, the one that wins
// first.
func (c *criTree) namesIn(f configFile) []string {
	switch {
	case c.reader.merge == mergeWhole:
		return []string{criV2}
	case c.reader.merge == mergeThenMigrate && c.version >= 3, c.reader.merge == migrateThenMerge && f.version >= 4:
		return []string{criV3}
	}
	return []string{criV3, criV2}
}

// checkNames refuses a tree in which all CRI settings have a name that this daemon does not read.
func (c *criTree) checkNames() error {
	var unread error
	for _, f := range c.files {
		key, v := toml.Field(f.tree, "plugins")
		plugins, _ := v.(map[string]any)
		names := c.namesIn(f)
		for _, name := range []string{criV3, criV2} {
			table, ok := plugins[name].(map[string]any)
			if !ok {
				continue
			}
			if slices.Contains(names, name) {
				return nil
			}
			// In version 3 the old name is the plugin's server part: the daemon ignores runtimes
			// there.
			if _, runtimes := toml.Field(table, "containerd"); name == criV2 && runtimes == nil && f.version >= 3 {
				continue
			}
			if unread == nil {
				reason := fmt.Sprintf("%s does not read [plugins.%s] in a file of version %d", c.reader.daemon, toml.KeyText(name, '"'), f.version)
				unread = f.refuse(RefusedNames, []string{key, name}, reason, c.fixName(name))
			}
		}
	}
	return unread
}

func (c *criTree) fixName(name string) string {
	if name == criV3 && c.reader.merge == mergeWhole {
		return fmt.Sprintf("write [plugins.%q] for [plugins.%q], or install containerd 2.0 or later", criV2, criV3)
	}
	return fmt.Sprintf("write [plugins.%q] for [plugins.%q]", criV3, name)
}

func (f configFile) plugin(name string) map[string]any {
	t, _ := toml.Sub(f.tree, "plugins")[name].(map[string]any)
	return t
}

// has says whether a file states a setting of the CRI plugin, by any plugin name that the daemon
// reads.
func (c *criTree) has(f configFile, names ...string) bool {
	for _, plugin := range c.namesIn(f) {
		at := toml.Sub(f.plugin(plugin), names[:len(names)-1]...)
		if _, v := toml.Field(at, names[len(names)-1]); v != nil {
			return true
		}
	}
	return false
}

func (c *criTree) hasEntry(f configFile, handler string) bool {
	for _, plugin := range c.namesIn(f) {
		if _, ok := toml.Sub(f.plugin(plugin), "containerd", "runtimes")[handler]; ok {
			return true
		}
	}
	return false
}

func (c *criTree) index(path string) int {
	return slices.IndexFunc(c.files, func(f configFile) bool { return f.path == path })
}

// target is the index of the file to edit, -1 for a drop-in that does not exist yet. It depends on
// which file has which settings, and not on their values: so the target is the same after the edit.
func (c *criTree) target(h engine.Handler) int {
	at := -1
	for i, f := range c.files {
		switch {
		case c.reader.merge == mergeWhole:
			if f.plugin(c.effectiveName()) != nil {
				at = i // the last one that has the table hides all others
			}
		case c.hasEntry(f, h.Name),
			h.Default && c.has(f, "containerd", "default_runtime_name"),
			h.CDI && c.reader.cdi != cdiFixed && c.has(f, "enable_cdi"):
			at = i // the last one that states it wins
		}
	}
	path, place := c.dropInPath()
	entry := slices.IndexFunc(c.files, func(f configFile) bool { return f.path != path && c.hasEntry(f, h.Name) })
	if path == "" || entry >= 0 {
		return max(at, 0) // an entry that an operator wrote is fixed in its own file
	}
	if i := c.index(path); i >= 0 && at <= i {
		return i
	} else if i < 0 && at < place {
		return -1
	}
	return max(at, 0)
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
	ours := -1
	for i, p := range patterns {
		folder, name := filepath.Split(p)
		if ok, err := filepath.Match(name, dropIn); err == nil && ok && strings.Contains(name, "*") && !strings.ContainsAny(folder, "*?[\\") {
			path, ours = folder+dropIn, i
		}
	}
	place = 1
	for _, f := range c.files[1:] {
		i := slices.IndexFunc(patterns, func(p string) bool {
			ok, err := filepath.Match(p, f.path)
			return err == nil && ok
		})
		if i >= 0 && (i < ours || i == ours && f.path < path) {
			place++
		}
	}
	return path, place
}
