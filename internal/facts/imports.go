// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"errors"
	"path"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Imports returns what the imports of a containerd config file name, in order: absolute paths, some with a * to be
// expanded. Relative ones are meant from the folder of the file that imports. All containerd versions from 1.6 to 2.4 do
// it this way: resolveImports in cmd/containerd/server/config/config.go of https://github.com/containerd/containerd.
func Imports(file string, data []byte) ([]string, error) {
	var c struct {
		Imports []string `toml:"imports"`
	}
	if err := unmarshal(data, &c); err != nil {
		return nil, err
	}
	return absolute(file, c.Imports), nil
}

// unmarshal reads TOML, also after a byte order mark, which containerd 1.x takes.
func unmarshal(data []byte, to any) error {
	return toml.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), to)
}

func absolute(file string, imports []string) []string {
	out := make([]string, len(imports))
	for i, p := range imports {
		if p = path.Clean(p); !path.IsAbs(p) {
			p = path.Join(path.Dir(file), p)
		}
		out[i] = p
	}
	return out
}

// containerdConfig is the little of a containerd config that matters here. Keys match without regard to case, as in
// containerd.
type containerdConfig struct {
	Imports []string `toml:"imports"`
	GRPC    struct {
		Address string `toml:"address"`
	} `toml:"grpc"`
	Plugins struct {
		GRPC struct {
			Address string `toml:"address"`
		} `toml:"io.containerd.server.v1.grpc"` // where config version 4 keeps it
	} `toml:"plugins"`
}

// maxFiles is how many files one engine's config may be spread over. More is a mistake, such as a * in the wrong place.
const maxFiles = 256

var (
	errTooManyImports = errors.New("it imports more than 256 files")
	errTooManyFiles   = errors.New("it holds more than 256 files")
)

// containerdFiles returns the config file and all it imports, in the order in which containerd reads them, and the
// socket's address if they name one.
//
// containerd works breadth first: a file, then its imports, then theirs; no path twice. Later files win. A file that
// containerd would refuse imports nothing here; its bytes are returned all the same.
func (l *look) containerdFiles(root string) (files []File, address string) {
	seen := map[string]bool{}
	for pending := []string{root}; len(pending) > 0; pending = pending[1:] {
		name := pending[0]
		if seen[name] {
			continue
		}
		seen[name] = true
		f := File{Path: name, Data: l.read(name)}
		files = append(files, f)
		if len(files) == maxFiles {
			l.fail("read", root, errTooManyImports)
			return files, address
		}
		var c containerdConfig
		if f.Data == nil || unmarshal(f.Data, &c) != nil {
			continue
		}
		if c.GRPC.Address != "" {
			address = c.GRPC.Address
		}
		if c.Plugins.GRPC.Address != "" {
			address = c.Plugins.GRPC.Address
		}
		for _, p := range absolute(name, c.Imports) {
			if strings.Contains(p, "*") { // containerd takes ? and [ alone literally
				pending = append(pending, l.glob(p)...)
			} else {
				pending = append(pending, p)
			}
		}
	}
	return files, address
}

// glob returns the paths that match, sorted folder by folder as filepath.Glob has it. A pattern that makes no sense
// matches nothing, and a name without magic characters matches itself where it is there.
func (l *look) glob(pattern string) []string {
	if !strings.ContainsAny(pattern, `*?[\`) {
		if l.has(pattern) {
			return []string{pattern}
		}
		return nil
	}
	dir, last := path.Split(pattern)
	if dir == "" {
		return nil
	}
	dirs := []string{path.Clean(dir)}
	if strings.ContainsAny(dir, `*?[\`) {
		dirs = l.glob(path.Clean(dir))
	}
	var out []string
	for _, d := range dirs {
		for _, name := range l.folder(d) {
			if ok, _ := path.Match(last, name); ok {
				out = append(out, path.Join(d, name))
			}
		}
	}
	return out
}

// folder returns the names in dir; none if it is something else.
func (l *look) folder(dir string) []string {
	if i, err := l.v.Stat(dir); err != nil || !i.Mode.IsDir() {
		return nil
	}
	return l.names(dir)
}
