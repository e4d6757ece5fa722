// SPDX-License-Identifier: Apache-2.0

// Package containerd edits containerd's configuration: it makes the smallest change with exactly
// the wanted effect, and has containerd itself validate the result.
//
// tree.go and merge.go read the files as each version of containerd does; checks.go refuses what
// cannot be edited. edit.go changes a file: target.go chooses which, ops.go which keys. owners.go
// has what gpuadm does where another program writes the configuration.
package containerd

import (
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// Tree is a containerd configuration as found: the root file and what it imports, in the order the
// daemon reads them.
type Tree struct {
	Root    File
	Imports []File
	Globs   string // where relative imports with a star start, see facts.Globs

	// Expands are pairs for strings.NewReplacer: what the owner's script puts in place of variables
	// in the files.
	Expands []string

	Texts *toml.Texts // files that were parsed already
}

// File is one configuration file. Data is nil when it does not exist, or is not a file: then Is
// says what it is.
type File struct {
	Path string
	Data []byte
	Is   string
}

// Daemon is the containerd that reads the configuration. Version is as the daemon or its package
// says it ("1.7.24", "v2.1.5", "2.1.5~ds1"); "" is unknown.
type Daemon struct{ Version string }

// treeOf returns an engine's files.
func treeOf(e facts.Engine) Tree {
	t := Tree{
		Root:    File{Path: e.Config},
		Globs:   facts.Globs(e.Version),
		Expands: e.Expands,
		Texts:   e.Texts,
	}
	for _, f := range e.Files {
		if f.Path == e.Config {
			t.Root.Data = f.Data
			continue
		}
		t.Imports = append(t.Imports, File{
			Path: f.Path,
			Data: f.Data,
			Is:   f.Is,
		})
	}

	return t
}

// file is the file of this name.
func (t Tree) file(name string) File {
	for _, f := range t.Imports {
		if f.Path == name {
			return f
		}
	}
	return File{Path: name}
}

// files returns all files; the root is the first.
func (t Tree) files() []File { return append([]File{t.Root}, t.Imports...) }

// data returns the bytes of a file, nil if it does not exist.
func (t Tree) data(name string) []byte {
	for _, f := range t.files() {
		if f.Path == name {
			return f.Data
		}
	}
	return nil
}

// with puts data in place of what the tree holds for path, if it holds that file at all. An
// imported file without data is not there, and no pattern matches it.
func (t Tree) with(path string, data []byte) Tree {
	if t.Root.Path == path {
		t.Root.Data = data
		return t
	}

	t.Imports = slices.Clone(t.Imports)
	isFile := func(f File) bool { return f.Path == path }
	if data == nil {
		t.Imports = slices.DeleteFunc(t.Imports, isFile)
	} else if i := slices.IndexFunc(t.Imports, isFile); i >= 0 {
		t.Imports[i].Data = data
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
