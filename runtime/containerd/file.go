// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// maxConfig bounds what is parsed. A full configuration has 15 KB.
const maxConfig = 1 << 20

// configFile is one file of the tree, read.
type configFile struct {
	path    string
	globs   string // where its relative imports with a star start
	data    []byte
	tree    map[string]any
	version int64 // as stated; 0 when it is not
	stated  bool
	empty   bool // has no key at all: gpuadm's edit begins with a version
}

func readFile(f File, t Tree) (configFile, error) {
	c := configFile{path: f.Path, data: f.Data, globs: t.Globs}
	if len(f.Data) > maxConfig {
		return c, refuse(RefusedSize, f.Path, 0, fmt.Sprintf("it has %d bytes, more than %d", len(f.Data), maxConfig),
			"move what is not containerd's configuration elsewhere")
	}
	tree, err := t.Texts.Values(t.expand(f.Data))
	if err == nil && toml.Depth(tree) > toml.MaxDepth {
		err = toml.ErrTooDeep
	}
	if err != nil {
		return c, syntaxRefusal(f, err)
	}
	c.tree, c.empty = tree, len(tree) == 0
	return c, c.readVersion()
}

func syntaxRefusal(f File, err error) error {
	if bytes.Contains(f.Data, []byte("{{")) { // a Go template (k3s, RKE2), and not a file that is merely broken
		return refuse(RefusedTemplate, f.Path, 0, "it is a Go template ({{ … }}), not TOML",
			"edit the template by hand, or configure the handler where its owner reads it (k3s and RKE2: config-v3.toml.d)")
	}
	if !utf8.Valid(f.Data) {
		at := bytes.IndexFunc(f.Data, func(r rune) bool { return r == utf8.RuneError })
		return refuse(RefusedSyntax, f.Path, 1+bytes.Count(f.Data[:at], []byte("\n")),
			fmt.Sprintf("byte 0x%X is not UTF-8, which TOML requires, also in comments; containerd 1.x reads the file all the same, 2.x does not", f.Data[at]),
			fmt.Sprintf("if it is Latin-1: iconv -f latin1 -t utf-8 -o %s.new %[1]s && mv %[1]s.new %[1]s", f.Path))
	}
	where := ""
	line, column := toml.ErrorPlace(err)
	if line > 0 {
		where = fmt.Sprintf("line %d, column %d: ", line, column)
	}
	return refuse(RefusedSyntax, f.Path, line, "it is not valid TOML: "+where+strings.TrimPrefix(err.Error(), "toml: "),
		"fix the line, and verify it with containerd config dump")
}

func (f *configFile) readVersion() error {
	key, v := toml.Field(f.tree, "version")
	if v == nil {
		return nil
	}
	n, ok := v.(int64)
	if !ok || n < 0 {
		return f.refuse(RefusedVersion, []string{key}, fmt.Sprintf("version is %s, not a positive integer", toml.Show(v)), "write version = 2 (3 for containerd 2.0 and later), without quotation marks")
	}
	f.version, f.stated = n, true
	return nil
}

// shape has, by name, the types of the settings that gpuadm reads; "*" is any name. As in Go, a
// table is a map and an array a slice.
func shape() map[string]any {
	cri := map[string]any{"enable_cdi": false, "containerd": map[string]any{
		"default_runtime_name": "", "default_runtime": map[string]any{}, "runtimes": map[string]any{"*": map[string]any{
			"runtime_type": "", "runtime_engine": "", "runtime_root": "", "options": map[string]any{"BinaryName": ""},
		}},
	}}
	return map[string]any{"version": int64(0), "imports": []any{""}, "disabled_plugins": []any{""}, "plugins": map[string]any{criV2: cri, criV3: cri}}
}

// checkShape refuses a value of another type than want, with which the daemon would not start; and
// a name that containerd 1.x passes over, since it reads its own names in this spelling or in
// capitals (go-toml v1), and 2.x in any case (go-toml v2). Measured on 1.6.20, 1.7.24, 2.1.9, 2.3.4
// and 2.4.2.
func (f configFile) checkShape(r criReader, v, want any, at []string) error {
	what := fmt.Sprintf("a %T", want)
	table, is := v.(map[string]any)
	switch want := want.(type) {
	case map[string]any:
		what, is = "a table", v == nil || is
		for _, p := range toml.Sorted(table) {
			for name, sub := range want {
				path := append(at, p.Key)
				read, _ := toml.Field(table, name)
				switch same := p.Key == name || name == "*"; {
				case !same && (strings.Contains(name, ".") || !strings.EqualFold(name, p.Key)):
					continue
				case !same && r.known && r.merge == mergeWhole && name == strings.ToLower(name) && p.Key != strings.ToUpper(name):
					return f.refuse(RefusedNames, path, fmt.Sprintf("%s does not read %s: it distinguishes upper and lower case", r.daemon, p.Key), "write "+name)
				case !same && read != p.Key:
					return f.refuse(RefusedNames, path, fmt.Sprintf("%s is there a second time, as %s", p.Key, read), "take one of them out")
				}
				if err := f.checkShape(r, p.Value, sub, path); err != nil {
					return err
				}
			}
		}
	case []any:
		var list []any
		if list, is = v.([]any); is {
			is = !slices.ContainsFunc(list, func(e any) bool { return reflect.TypeOf(e) != reflect.TypeOf(want[0]) })
		}
		what = "an array of strings"
	default:
		is = reflect.TypeOf(v) == reflect.TypeOf(want)
	}
	if !is {
		return f.refuse(RefusedShape, at, fmt.Sprintf("%s is %s, not %s", toml.ShowPath(at), toml.Show(v), what), "write it as the daemon reads it, or take it out")
	}
	return nil
}

// checkOld refuses a default runtime as containerd 1.2 wrote it.
func (f configFile) checkOld(criReader) error {
	for _, name := range []string{criV3, criV2} {
		if containerd := toml.Sub(f.plugin(name), "containerd"); toml.String(toml.Sub(containerd, "default_runtime"), "runtime_type") != "" {
			key, _ := toml.Field(f.tree, "plugins")
			return f.refuse(RefusedShape, []string{key, name}, "default_runtime is how containerd 1.2 named the default", "write it as a table in runtimes, and its name as default_runtime_name")
		}
	}
	return nil
}

// checkDisabled refuses a tree in which the CRI plugin is switched off, as Docker's package of
// containerd ships it.
func (f configFile) checkDisabled(r criReader) error {
	key, v := toml.Field(f.tree, "disabled_plugins")
	list, _ := v.([]any)
	off := []string{criV1, criV2, criV3, "io.containerd.cri.v1.images"}
	if r.merge == mergeWhole && r.known {
		off = off[:2]
	}
	for _, e := range list {
		if s, ok := e.(string); ok && slices.Contains(off, s) {
			return f.refuse(RefusedDisabled, []string{key}, fmt.Sprintf("the CRI plugin is switched off: disabled_plugins has %q", s),
				fmt.Sprintf("take %q out of disabled_plugins; without the CRI plugin kubelet cannot use this containerd", s))
		}
	}
	return nil
}

// checkVersion refuses a version that this daemon does not read, and version 1, which is that of a
// root without a version. The daemon reads an imported file without a version by the root's
// version, except for [plugins.cri].
func (f configFile) checkVersion(r criReader, root bool) error {
	key, _ := toml.Field(f.tree, "version")
	switch _, short := toml.Sub(f.tree, "plugins")[criV1]; {
	case f.version > r.max:
		return f.refuse(RefusedVersion, []string{key}, fmt.Sprintf("version %d is newer than %s reads (%d)", f.version, r.daemon, r.max),
			"install the containerd this file was written for, or write the file for this one (containerd config default)")
	case f.version < 2 && !f.empty && (root || f.stated || short):
		fix := "write version = 2 as the first line"
		if root && toml.Sub(f.tree, "plugins") == nil && len(f.imports()) > 0 {
			fix = fmt.Sprintf("write version = %d as the first line", r.create) // the files that it imports may be of that version
		}
		if short {
			fix += fmt.Sprintf(", and [plugins.%q] for [plugins.cri]", criV2)
		}
		return f.refuse(RefusedVersion, []string{key}, "it is of version 1, which gpuadm does not edit: containerd 1.3 and newer read version 2", fix)
	case r.known && r.merge != mergeWhole && bytes.HasPrefix(f.data, []byte(toml.BOM)):
		return refuse(RefusedSyntax, f.path, 1, fmt.Sprintf("it begins with a byte order mark, which %s does not read", r.daemon),
			"take the first three bytes out: sed -i '1s/^\\xef\\xbb\\xbf//' "+f.path)
	}
	return nil
}

// checkStart refuses what keeps containerd 1.x from starting, measured on 1.6.20 and 1.7.24: the
// name of a plugin in another form than io.containerd.x.vx in a file of version 2, as [plugins.cri]
// is, and a tab after a dot in a key. From 2.0 on it reads both.
func (f configFile) checkStart(r criReader) error {
	if !r.known || r.merge != mergeWhole {
		return nil
	}
	key, _ := toml.Field(f.tree, "plugins")
	for _, p := range toml.Sorted(toml.Sub(f.tree, "plugins")) {
		if f.version >= 2 && (!strings.HasPrefix(p.Key, "io.containerd.") || strings.Count(p.Key, ".") < 3) {
			return f.refuse(RefusedStart, []string{key, p.Key}, fmt.Sprintf("%s does not start with [plugins.%s] in a file of version %d", r.daemon, toml.KeyText(p.Key, '"'), f.version),
				fmt.Sprintf("write the plugin's full name, such as [plugins.%q]", criV2))
		}
	}
	if at := tabInKey().FindIndex(f.data); at != nil {
		return refuse(RefusedStart, f.path, 1+bytes.Count(f.data[:at[1]], []byte("\n")), r.daemon+" does not read a tab after a dot in a key", "take the tab out")
	}
	if at := escapeInName().FindIndex(f.data); at != nil {
		return refuse(RefusedNames, f.path, 1+bytes.Count(f.data[:at[1]], []byte("\n")), r.daemon+" does not decode an escape in the name of a table", "write the name without it")
	}
	return nil
}

// escapeInName finds a backslash in the name of a table.
var escapeInName = pattern.Of(`(?m)^[ \t]*\[[^\]\n]*\\`)

// tabInKey finds a tab after a dot, before a line's = and comment.
var tabInKey = pattern.Of(`(?m)^[^#=\n"']*(?:(?:"[^"\n]*"|'[^'\n]*')[^#=\n"']*)*\. *\t`)

// Refused is why a configuration cannot be edited: the code of the error.
type Refused = trouble.Code

const (
	RefusedDisabled Refused = engine.NoCRI
	RefusedNames    Refused = "plugin-names"
	RefusedTemplate Refused = "template"
	RefusedSyntax   Refused = "invalid-toml"
	RefusedVersion  Refused = "version"
	RefusedShape    Refused = "structure"
	RefusedSize     Refused = "too-large"
	RefusedStart    Refused = "does-not-start"
)

// refuse says why a file cannot be edited. line is 0 if the reason has no single place.
func refuse(code Refused, file string, line int, reason, fix string) error {
	if line > 0 {
		file = fmt.Sprintf("%s:%d", file, line)
	}
	return &trouble.Error{What: fmt.Sprintf("cannot edit %s: %s", file, reason), Try: []string{fix}, Err: code}
}

// refuse names the line of the key at path.
func (f configFile) refuse(code Refused, path []string, reason, fix string) error {
	line := 0
	if d, err := toml.Parse(f.data); err == nil && len(path) > 0 {
		line = d.LineOf(path)
	}
	return refuse(code, f.path, line, reason, fix)
}
