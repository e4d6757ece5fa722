// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// checkFile refuses a file of the tree that the daemon does not read, or that gpuadm cannot edit.
func checkFile(r criReader, files []configFile, i int) error {
	f := files[i]
	if err := f.checkShape(r, f.tree, shape(), nil); err != nil {
		return err
	}
	if err := f.checkDisabled(r); err != nil {
		return err
	}
	if err := f.checkOldDefault(); err != nil {
		return err
	}
	if err := f.checkStart(r); err != nil {
		return err
	}
	if err := f.checkVersion(r, i == 0); err != nil {
		return err
	}
	return f.checkImport(r, files)
}

// checkImport refuses an import of a newer version than the root's, with which some versions of
// containerd do not start.
func (f configFile) checkImport(r criReader, files []configFile) error {
	root := files[0]
	if !r.rootLeads || !root.stated || f.version <= root.version {
		return nil
	}
	return f.refuse(RefusedStart, []string{f.key("version")},
		fmt.Sprintf("%s does not start with an imported file of version %d, newer than version %d of %s", r.daemon, f.version, root.version, root.path),
		fmt.Sprintf("write it in version %d, or update containerd to 2.3.7 or newer", root.version))
}

// checkImports refuses a file that is imported and cannot be opened, by its name or by a pattern
// that matches a link to nothing: then no containerd starts. Measured by starting 1.6.20, 1.7.24,
// 2.1.9, 2.3.4 and 2.4.2; from 2.0 on `config dump` prints all the same, and exits with 0.
// Source: LoadConfig in cmd/containerd/server/config/config.go, and its callers in
// cmd/containerd/command/main.go and config.go, of https://github.com/containerd/containerd.
func checkImports(r criReader, files []configFile, t Tree) error {
	for _, f := range files {
		name := f.missingImport(files, t)
		if name == "" {
			continue
		}
		what, try := unopened(t.file(name), r.daemon)
		return f.refuse(RefusedStart, []string{f.key("imports")}, what, try)
	}
	return nil
}

// unopened says that an imported file cannot be opened, and what to do about it.
func unopened(f File, daemon string) (what, try string) {
	if f.Is != "" {
		return fmt.Sprintf("it imports %s, which is %s, and %s does not start with it", f.Path, f.Is, daemon),
			"move it to a place that imports does not name"
	}
	return fmt.Sprintf("it imports %s, which is not there, and %s does not start without it", f.Path, daemon),
		"write the file, or take it out of imports; where it is a link, ls -l " + f.Path + " shows where it leads"
}

// shape has, by name, the types of the settings that gpuadm reads; "*" is any name. As in Go, a
// table is a map and an array a slice.
func shape() map[string]any {
	runtime := map[string]any{
		"runtime_type":   "",
		"runtime_engine": "",
		"runtime_root":   "",
		"options":        map[string]any{"BinaryName": ""},
	}
	cri := map[string]any{
		"enable_cdi": false,
		"containerd": map[string]any{
			"default_runtime_name": "",
			"default_runtime":      map[string]any{},
			"runtimes":             map[string]any{"*": runtime},
		},
	}
	return map[string]any{
		"version":          int64(0),
		"imports":          []any{""},
		"disabled_plugins": []any{""},
		"plugins":          map[string]any{criV2: cri, criV3: cri},
	}
}

// checkShape refuses a value of another type than want, with which the daemon would not start.
func (f configFile) checkShape(r criReader, value, want any, path []string) error {
	what := fmt.Sprintf("a %T", want)
	fits := false
	switch want := want.(type) {
	case map[string]any:
		table, isTable := value.(map[string]any)
		if err := f.checkTable(r, table, want, path); err != nil {
			return err
		}
		what = "a table"
		fits = isTable || value == nil
	case []any:
		what = "an array of strings"
		fits = isArrayOf(value, want[0])
	default:
		fits = reflect.TypeOf(value) == reflect.TypeOf(want)
	}

	if fits {
		return nil
	}
	return f.refuse(RefusedShape, path,
		fmt.Sprintf("%s is %s, not %s", toml.ShowPath(path), toml.Show(value), what),
		"write it as the daemon reads it, or take it out")
}

// isArrayOf says whether all elements of an array are of the same type as like.
func isArrayOf(value, like any) bool {
	list, isList := value.([]any)
	if !isList {
		return false
	}
	other := func(element any) bool { return reflect.TypeOf(element) != reflect.TypeOf(like) }
	return !slices.ContainsFunc(list, other)
}

// checkTable checks the settings of a table by want.
func (f configFile) checkTable(r criReader, table, want map[string]any, path []string) error {
	for _, pair := range toml.Sorted(table) {
		for name, sub := range want {
			at := append(path, pair.Key)
			if name != "*" && pair.Key != name {
				if strings.Contains(name, ".") || !strings.EqualFold(name, pair.Key) {
					continue
				}
				if err := f.checkSpelling(r, table, name, at); err != nil {
					return err
				}
			}

			if err := f.checkShape(r, pair.Value, sub, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSpelling refuses a key that is a name in another case, where containerd does not read it:
// 1.x reads its own names in this spelling or in capitals (go-toml v1), 2.x in any case (go-toml
// v2). Measured on 1.6.20, 1.7.24, 2.1.9, 2.3.4 and 2.4.2.
func (f configFile) checkSpelling(r criReader, table map[string]any, name string, path []string) error {
	key := path[len(path)-1]
	isLower := name == strings.ToLower(name)
	if r.isV1() && isLower && key != strings.ToUpper(name) {
		return f.refuse(RefusedNames, path,
			fmt.Sprintf("%s does not read %s: it distinguishes upper and lower case", r.daemon, key),
			"write "+name)
	}

	if read, _ := toml.Field(table, name); read != key {
		return f.refuse(RefusedNames, path,
			fmt.Sprintf("%s is there a second time, as %s", key, read),
			"take one of them out")
	}

	return nil
}

// checkOldDefault refuses a default runtime as containerd 1.2 wrote it.
func (f configFile) checkOldDefault() error {
	for _, name := range []string{criV3, criV2} {
		old := toml.Sub(f.plugin(name), "containerd", "default_runtime")
		if toml.String(old, "runtime_type") != "" {
			return f.refuse(RefusedShape, []string{f.key("plugins"), name},
				"default_runtime is how containerd 1.2 named the default",
				"write it as a table in runtimes, and its name as default_runtime_name")
		}
	}
	return nil
}

// checkDisabled refuses a tree in which the CRI plugin is switched off, as Docker's package of
// containerd ships it.
func (f configFile) checkDisabled(r criReader) error {
	needed := []string{criV1, criV2}
	if !r.isV1() {
		needed = append(needed, criV3, "io.containerd.cri.v1.images")
	}

	key, value := toml.Field(f.tree, "disabled_plugins")
	list, _ := value.([]any)
	for _, element := range list {
		name, _ := element.(string)
		if slices.Contains(needed, name) {
			return f.refuse(RefusedDisabled, []string{key},
				fmt.Sprintf("the CRI plugin is switched off: disabled_plugins has %q", name),
				fmt.Sprintf("take %q out of disabled_plugins; without the CRI plugin kubelet cannot use this containerd", name))
		}
	}

	return nil
}

// checkVersion refuses a version that this daemon does not read, and version 1, which is that of a
// root without a version. The daemon reads an imported file without a version by the root's
// version, except for [plugins.cri].
func (f configFile) checkVersion(r criReader, isRoot bool) error {
	if f.version > r.max {
		return f.refuse(RefusedVersion, []string{f.key("version")},
			fmt.Sprintf("version %d is newer than %s reads (%d)", f.version, r.daemon, r.max),
			"install the containerd this file was written for, or write the file for this one (containerd config default)")
	}

	plugins := toml.Sub(f.tree, "plugins")
	_, hasV1Name := plugins[criV1]
	isV1 := f.version < 2 && !f.empty && (isRoot || f.stated || hasV1Name)
	if isV1 {
		fix := "write version = 2 as the first line"
		// The files that a root without plugins imports may be of the newest version.
		if isRoot && plugins == nil && len(f.imports()) > 0 {
			fix = fmt.Sprintf("write version = %d as the first line", r.create)
		}
		if hasV1Name {
			fix += fmt.Sprintf(", and [plugins.%q] for [plugins.cri]", criV2)
		}
		return f.refuse(RefusedVersion, []string{f.key("version")},
			"it is of version 1, which gpuadm does not edit: containerd 1.3 and newer read version 2", fix)
	}

	if r.known && !r.isV1() && bytes.HasPrefix(f.data, []byte(toml.BOM)) {
		return refuse(RefusedSyntax, f.path, 1,
			fmt.Sprintf("it begins with a byte order mark, which %s does not read", r.daemon),
			"take the first three bytes out: sed -i '1s/^\\xef\\xbb\\xbf//' "+f.path)
	}

	return nil
}

// checkStart refuses what keeps containerd 1.x from starting, measured on 1.6.20 and 1.7.24: the
// name of a plugin in another form than io.containerd.x.vx in a file of version 2, as [plugins.cri]
// is, and a tab after a dot in a key. From 2.0 on it reads both.
func (f configFile) checkStart(r criReader) error {
	if !r.isV1() {
		return nil
	}

	if f.version >= 2 {
		for _, pair := range toml.Sorted(toml.Sub(f.tree, "plugins")) {
			if strings.HasPrefix(pair.Key, "io.containerd.") && strings.Count(pair.Key, ".") >= 3 {
				continue
			}
			return f.refuse(RefusedStart, []string{f.key("plugins"), pair.Key},
				fmt.Sprintf("%s does not start with [plugins.%s] in a file of version %d", r.daemon, toml.KeyText(pair.Key, '"'), f.version),
				fmt.Sprintf("write the plugin's full name, such as [plugins.%q]", criV2))
		}
	}

	if found := tabInKey().FindIndex(f.data); found != nil {
		return refuse(RefusedStart, f.path, lineAt(f.data, found[1]),
			r.daemon+" does not read a tab after a dot in a key", "take the tab out")
	}
	if found := escapeInName().FindIndex(f.data); found != nil {
		return refuse(RefusedNames, f.path, lineAt(f.data, found[1]),
			r.daemon+" does not decode an escape in the name of a table", "write the name without it")
	}
	return nil
}

// escapeInName finds a backslash in the name of a table.
var escapeInName = pattern.Of(`(?m)^[ \t]*\[[^\]\n]*\\`)

// tabInKey finds a tab after a dot, before a line's = and comment.
var tabInKey = pattern.Of(`(?m)^[^#=\n"']*(?:(?:"[^"\n]*"|'[^'\n]*')[^#=\n"']*)*\. *\t`)
