// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// maxConfig bounds what is parsed. A full configuration has 15 KB.
const maxConfig = 1 << 20

// configFile is one file of the tree, read.
type configFile struct {
	path    string
	globs   string // where its relative imports with a star start
	data    []byte
	tree    map[string]any
	version int64 // as the file has it; 0 when it has none
	stated  bool  // the file has a version
	empty   bool  // has no key at all: gpuadm's edit begins with a version
}

func readFile(f File, t Tree) (configFile, error) {
	c := configFile{path: f.Path, data: f.Data, globs: t.Globs}
	if len(f.Data) > maxConfig {
		return c, refuse(RefusedSize, f.Path, 0,
			fmt.Sprintf("it has %d bytes, more than %d", len(f.Data), maxConfig),
			"move what is not containerd's configuration elsewhere")
	}

	tree, err := t.Texts.Values(t.expand(f.Data))
	if err == nil && toml.Depth(tree) > toml.MaxDepth {
		err = toml.ErrTooDeep
	}
	if err != nil {
		return c, syntaxRefusal(f, err)
	}
	c.tree = tree
	c.empty = len(tree) == 0
	return c, c.readVersion()
}

// syntaxRefusal says why a file is not TOML.
func syntaxRefusal(f File, err error) error {
	// A Go template (k3s, RKE2) is not merely broken TOML.
	if bytes.Contains(f.Data, []byte("{{")) {
		return refuse(RefusedTemplate, f.Path, 0,
			"it is a Go template ({{ … }}), not TOML",
			"edit the template by hand, or configure the handler where its owner reads it (k3s and RKE2: config-v3.toml.d)")
	}

	if !utf8.Valid(f.Data) {
		at := bytes.IndexFunc(f.Data, func(r rune) bool { return r == utf8.RuneError })
		return refuse(RefusedSyntax, f.Path, lineAt(f.Data, at),
			fmt.Sprintf("byte 0x%X is not UTF-8, which TOML requires, also in comments; containerd 1.x reads the file all the same, 2.x does not", f.Data[at]),
			fmt.Sprintf("if it is Latin-1: sudo iconv -f latin1 -t utf-8 -o %s.new %[1]s && sudo mv %[1]s.new %[1]s", f.Path))
	}

	where := ""
	line, column := toml.ErrorPlace(err)
	if line > 0 {
		where = fmt.Sprintf("line %d, column %d: ", line, column)
	}
	return refuse(RefusedSyntax, f.Path, line,
		"it is not valid TOML: "+where+strings.TrimPrefix(err.Error(), "toml: "),
		"fix the line, and verify it with containerd config dump")
}

// lineAt is the number of the line that has a byte, from 1.
func lineAt(data []byte, at int) int { return 1 + bytes.Count(data[:at], []byte("\n")) }

func (f *configFile) readVersion() error {
	key, value := toml.Field(f.tree, "version")
	if value == nil {
		return nil
	}

	version, ok := value.(int64)
	if !ok || version < 0 {
		return f.refuse(RefusedVersion, []string{key},
			fmt.Sprintf("version is %s, not a positive integer", toml.Show(value)),
			"write version = 2 (3 for containerd 2.0 and later), without quotation marks")
	}

	f.version = version
	f.stated = true
	return nil
}

// key is the file's own spelling of a setting's name.
func (f configFile) key(name string) string {
	key, _ := toml.Field(f.tree, name)
	return key
}

// plugin is a plugin's table; nil if the file has none.
func (f configFile) plugin(name string) map[string]any {
	table, _ := toml.Sub(f.tree, "plugins")[name].(map[string]any)
	return table
}

// imports are the patterns that a file imports, made absolute.
func (f configFile) imports() []string {
	_, value := toml.Field(f.tree, "imports")
	list, _ := value.([]any)
	var patterns []string
	for _, element := range list {
		if pattern, ok := element.(string); ok {
			patterns = append(patterns, pattern)
		}
	}

	return facts.Absolute(f.path, patterns, f.globs)
}
