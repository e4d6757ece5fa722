// SPDX-License-Identifier: Apache-2.0

// Package crio writes a drop-in for CRI-O, has CRI-O itself judge it, and waits until CRI-O has
// loaded it.
package crio

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// dropIn is the name of gpuadm's file in CRI-O's folder of drop-ins. CRI-O reads all files there,
// ordered by name, whatever their suffix.
const dropIn = "99-gpuadm.conf"

// config is what CRI-O makes of its files: the file, then the drop-ins, in their order. A later
// default_runtime counts; a later entry of a runtime replaces an earlier one as a whole, and other
// runtimes stay.
// Sources: UpdateFromDropInFile and UpdateFromPath in pkg/config/config.go of
// https://github.com/cri-o/cri-o at v1.23.0, v1.28.0 and v1.36.3; unifyMap in decode.go of
// https://github.com/BurntSushi/toml, which makes each value of a map afresh.
type config struct {
	byDefault string
	defaultIn string // the file that names the default; "" if none does
	runtimes  map[string]map[string]any
	from      map[string]string // the file that a runtime's entry is in; "" is CRI-O's own
	builtin   string            // the runtime that CRI-O brings
	manager   string            // cgroup_manager; "" if none states it
	managerIn string            // the file that does
	forgets   string            // the file whose default_runtime makes CRI-O forget builtin; "" if none does
}

// readFiles reads the files as a CRI-O of this version does; an unknown version counts as the
// newest.
func readFiles(files []facts.File, version string) (config, error) {
	if engine.IsBefore(version, 1, 23) {
		return config{}, &trouble.Error{
			What: fmt.Sprintf("cannot configure CRI-O %s: gpuadm knows 1.23 and newer", version),
			Try:  []string{"update CRI-O; it has the minor version of the node's Kubernetes"},
		}
	}

	// defaultRuntime in pkg/config: runc up to v1.30.0, crun from v1.31.0 (release notes of CRI-O
	// 1.31).
	builtin := "crun"
	if engine.IsBefore(version, 1, 31) {
		builtin = "runc"
	}
	c := config{
		byDefault: builtin,
		runtimes:  map[string]map[string]any{builtin: builtinEntry(builtin)},
		from:      map[string]string{},
		builtin:   builtin,
	}
	for _, f := range files {
		if err := c.read(f, version); err != nil {
			return c, err
		}
	}

	if c.byDefault == "" {
		c.byDefault = c.builtin
	}
	if c.runtimes[c.builtin] != nil {
		c.forgets = ""
	}
	return c, nil
}

// builtinEntry is the entry of the runtime that CRI-O brings.
func builtinEntry(name string) map[string]any {
	return map[string]any{"runtime_type": "oci", "runtime_root": "/run/" + name}
}

// read applies one file.
func (c *config) read(f facts.File, version string) error {
	tree, err := toml.Values(f.Data)
	if err == nil && toml.Depth(tree) > toml.MaxDepth {
		err = toml.ErrTooDeep
	}
	if err != nil {
		line, column := toml.ErrorPlace(err)
		return &trouble.Error{
			What: fmt.Sprintf("cannot read %s: it is not valid TOML: line %d, column %d: %v", f.Path, line, column, err),
			Try:  []string{"fix the line; crio config says the same of it"},
			Err:  err,
		}
	}

	settings := toml.Sub(tree, "crio", "runtime")
	for name, value := range toml.Sub(settings, "runtimes") {
		entry, isTable := value.(map[string]any)
		if !isTable {
			return &trouble.Error{
				What: fmt.Sprintf("cannot read %s: crio.runtime.runtimes.%s is not a table", f.Path, name),
				Try:  []string{"fix it; crio config says the same"},
			}
		}

		c.runtimes[name] = entry
		c.from[name] = f.Path
	}

	if manager := toml.String(settings, "cgroup_manager"); manager != "" {
		c.manager = manager
		c.managerIn = f.Path
	}

	byDefault, isSet := settings["default_runtime"].(string)
	if !isSet {
		return nil
	}
	c.byDefault = byDefault
	c.defaultIn = f.Path
	if byDefault != c.builtin && engine.IsBefore(version, 1, 26) {
		// delete(c.Runtimes, defaultRuntime) at v1.23.0 to v1.25.0, even if this file has it.
		c.forgets = f.Path
		delete(c.runtimes, c.builtin)
	}

	return nil
}

// foreign is a handler's entry in a file that is not gpuadm's, and that file; nil if there is none.
func (c config) foreign(handler, own string) (entry map[string]any, file string) {
	file = c.from[handler]
	if file == "" || file == own {
		return nil, ""
	}
	return c.runtimes[handler], file
}

// isAlike says whether gpuadm's drop-in has the entry that CRI-O reads anyway, from a later file of
// another program such as nvidia-ctk, and no more than the spec asks for. To take the drop-in out
// would change nothing for containers, and would restart CRI-O.
func (c config) isAlike(files []facts.File, h engine.Handler, target string) bool {
	foreign, _ := c.foreign(h.Name, target)
	i := slices.IndexFunc(files, func(f facts.File) bool { return f.Path == target })
	if foreign == nil || i < 0 {
		return false
	}

	tree, err := toml.Values(files[i].Data)
	settings := toml.Sub(tree, "crio", "runtime")
	own := toml.Sub(settings, "runtimes", h.Name)
	if err != nil || !engine.SameEntry(own, foreign, isEmpty) {
		return false
	}
	names := toml.String(settings, "default_runtime") == h.Name
	return names == h.Default && (!h.Default || c.byDefault == h.Name)
}

// isEmpty reports whether a value of an entry means the same as none.
func isEmpty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case string:
		return value == ""
	case bool:
		return !value
	case []any:
		return len(value) == 0
	}
	return false
}

// editFile changes found, the bytes of gpuadm's drop-in (nil: not there), so that CRI-O has the
// handler. It verifies that CRI-O loses no runtime. It leaves an entry that is in another file.
func editFile(
	files []facts.File, version string, h engine.Handler, target string, found []byte,
) ([]byte, error) {
	before, err := readFiles(withFile(files, target, found), version)
	if err != nil {
		return nil, err
	}
	forgotten := before.forgets != "" && before.forgets != target
	if forgotten && h.Default && before.byDefault == h.Name {
		return nil, &trouble.Error{
			What: fmt.Sprintf(
				"cannot make %s CRI-O's default: CRI-O %s forgets the runtime %s, as %s has another default",
				h.Name, version, before.builtin, before.forgets,
			),
			Try: []string{
				"take default_runtime out of " + before.forgets + ", and set_as_default out of [runtime]",
				"or update CRI-O to 1.26 or newer, which keeps it",
			},
		}
	}

	ops := before.ops(h, target)
	if len(ops) == 0 {
		return found, nil
	}
	edited, err := toml.Edit(found, ops)
	if err != nil {
		return nil, fmt.Errorf("cannot edit %s: %w", target, err)
	}
	after, err := readFiles(withFile(files, target, edited), version)
	if err != nil {
		return nil, fmt.Errorf("cannot edit %s: internal error: the result would be refused: %w", target, err)
	}
	return edited, before.verifyEffect(after, h, target, version)
}

// ops lists what must change in gpuadm's drop-in so that CRI-O has the handler; none if it has it.
func (c config) ops(h engine.Handler, target string) []toml.Op {
	var ops []toml.Op
	if h.Default && c.byDefault != h.Name {
		ops = append(ops, toml.Set([]string{"crio", "runtime", "default_runtime"}, h.Name))
	}

	entryPath := []string{"crio", "runtime", "runtimes", h.Name}
	if entry, _ := c.foreign(h.Name, target); entry != nil {
		return ops
	}
	if c.from[h.Name] != target { // CRI-O's own has no file
		return append(ops, toml.Set(entryPath, c.newEntry(h)))
	}

	entry := c.runtimes[h.Name]
	if entry["runtime_path"] != h.Binary {
		ops = append(ops, toml.Set(append(slices.Clone(entryPath), "runtime_path"), h.Binary))
	}
	if entry[inherits] == true {
		ops = append(ops, toml.Unset(append(slices.Clone(entryPath), inherits)))
	}
	return ops
}

// inherits is a key by which an entry takes path, root and type from the default runtime: such a
// handler runs the default's program, and not NVIDIA's. So gpuadm does not use it, and copies what
// the default has, for all versions.
// Sources: ValidateRuntimes in pkg/config/config.go of https://github.com/cri-o/cri-o at v1.32.0,
// which has it first, and v1.36.3; "override the runtime path, runtime config path, runtime root
// and runtime type" in its docs/crio.conf.5.md.
const inherits = "inherit_default_runtime"

// newEntry is a new handler's table: its program, and the other keys of its template.
func (c config) newEntry(h engine.Handler) toml.Table {
	entry := builtinEntry(c.builtin)
	maps.Copy(entry, c.template(h.Name))
	others := []string{"runtime_path", "runtime_config_path", "platform_runtime_paths", inherits}
	for _, other := range others {
		delete(entry, other)
	}
	return append(toml.Table{}.With("runtime_path", h.Binary), toml.Sorted(entry)...)
}

// template is the entry whose keys a new handler gets: that of the default runtime; of crun or runc
// if the default runs virtual machines; of CRI-O's own runtime if the handler itself is the default.
func (c config) template(handler string) map[string]any {
	if c.byDefault == handler {
		return c.runtimes[c.builtin]
	}
	for _, name := range []string{c.byDefault, "crun", "runc"} {
		if isTemplate(c.runtimes[name]) {
			return c.runtimes[name]
		}
	}
	return c.runtimes[c.builtin]
}

// isTemplate says whether a new handler can have an entry's keys.
func isTemplate(entry map[string]any) bool {
	return entry != nil && toml.String(entry, "runtime_type") != "vm" && entry[inherits] != true
}

// verifyEffect compares CRI-O's configuration before the edit with the one after it.
func (c config) verifyEffect(after config, h engine.Handler, target, version string) error {
	for name, entry := range c.runtimes {
		now, found := after.runtimes[name]
		if !found {
			return &trouble.Error{
				What: fmt.Sprintf("cannot make %s CRI-O's default: CRI-O %s would forget the runtime %s", h.Name, version, name),
				Try: []string{
					"leave set_as_default out of [runtime]",
					"or update CRI-O to 1.26 or newer, which keeps it",
				},
			}
		}

		if name != h.Name && !toml.Equal(now, entry) {
			return fmt.Errorf("cannot edit %s: internal error: CRI-O would see the runtime %s changed", target, name)
		}
	}

	if h.Default && after.byDefault != h.Name {
		return &trouble.Error{
			What: fmt.Sprintf("cannot make %s CRI-O's default: %s, which CRI-O reads after %s, says %s",
				h.Name, after.defaultIn, target, after.byDefault),
			Try: []string{"take default_runtime out of " + after.defaultIn},
		}
	}

	return nil
}

// withFile gives the file at target these bytes, at its place in the order of reading.
func withFile(files []facts.File, target string, data []byte) []facts.File {
	files = slices.DeleteFunc(slices.Clone(files), func(f facts.File) bool {
		return f.Path == target
	})
	if data == nil {
		return files
	}

	// CRI-O reads its main file first, then the drop-ins by name; the files of a subfolder come
	// where the subfolder's name does.
	place := slices.IndexFunc(files, func(f facts.File) bool {
		return inOrder(target, f.Path) && strings.HasPrefix(f.Path, path.Dir(target)+"/")
	})
	if place < 0 {
		place = len(files)
	}
	return slices.Insert(files, place, facts.File{Path: target, Data: data})
}

// inOrder says whether a walk through a folder comes to a before b: it compares their paths element
// by element.
func inOrder(a, b string) bool {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) < 0
}

// missing says what CRI-O lacks of a handler, "" if nothing: for configurations that others write.
func missing(e facts.Engine, h engine.Handler) string {
	c, err := readFiles(e.Files, e.Version)
	if err != nil {
		return e.Config + " cannot have it: " + err.Error()
	}

	entry := c.runtimes[h.Name]
	switch {
	case entry == nil:
		return e.Config + " does not have it"
	case entry[inherits] == true:
		return e.Config + " has it run the default runtime's program, by " + inherits
	case h.Default && c.byDefault != h.Name:
		if c.defaultIn == "" {
			return fmt.Sprintf("no file in %s makes it the default, which is CRI-O's own %s", e.Folder, c.byDefault)
		}
		return c.defaultIn + " has another default: " + c.byDefault
	}

	return ""
}

// CDIFolders are the folders in which CRI-O looks for CDI specs: those of the last file that states
// them; nil where none does.
func CDIFolders(e facts.Engine) (folders []string) {
	for _, f := range e.Files {
		tree, err := toml.Values(f.Data)
		if err != nil {
			continue
		}
		stated := toml.Strings(toml.Sub(tree, "crio", "runtime"), "cdi_spec_dirs")
		if stated != nil {
			folders = stated
		}
	}
	return folders
}
