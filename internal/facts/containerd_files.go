// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"cmp"
	"errors"
	"path"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// Globs is the folder from which this version of containerd takes relative imports with a *:
// systemd's "/", where it takes them from its working directory, which is so in 1.6 before 1.6.29
// and in 1.7 before 1.7.16; else "", for the importing file's. Sources:
// services/server/config/config.go of containerd v1.6.28, v1.6.29, v1.7.15 and v1.7.16;
// https://github.com/containerd/containerd/pull/9834.
func Globs(version string) string {
	fixed := ""
	switch {
	case strings.HasPrefix(version, "1.6."):
		fixed = "1.6.29"
	case strings.HasPrefix(version, "1.7."):
		fixed = "1.7.16"
	default:
		return ""
	}

	if newer(version, fixed) < 0 {
		return "/"
	}
	return ""
}

// Absolute makes paths of what a containerd configuration file imports: absolute ones, some with a
// * to be expanded. Relative ones are meant from the folder of the file that imports; where Globs
// says so, those with a * are not.
// Source: resolveImports in services/server/config/config.go and
// cmd/containerd/server/config/config.go of https://github.com/containerd/containerd.
func Absolute(file string, imports []string, globs string) []string {
	out := make([]string, len(imports))
	for i, name := range imports {
		name = path.Clean(name)
		switch {
		case path.IsAbs(name):
			out[i] = name
		case globs != "" && strings.Contains(name, "*"):
			out[i] = path.Join(globs, name)
		default:
			out[i] = path.Join(path.Dir(file), name)
		}
	}

	return out
}

// containerdConfig is the little of a containerd config that matters here. Keys match without
// regard to case, as in containerd.
type containerdConfig struct {
	imports []string
	address string
}

// readContainerd finds it in the values of a file; ok says that they are of the types that
// containerd takes.
func readContainerd(tree map[string]any) (c containerdConfig, ok bool) {
	ok = true
	table := func(value any) map[string]any {
		t, is := value.(map[string]any)
		ok = ok && (is || value == nil)
		return t
	}

	text := func(value any) string {
		s, is := value.(string)
		ok = ok && (is || value == nil)
		return s
	}

	at := func(t map[string]any, name string) any {
		_, value := toml.Field(t, name)
		return value
	}

	switch list := at(tree, "imports").(type) {
	case nil:
	case []any:
		for _, one := range list {
			c.imports = append(c.imports, text(one))
		}
	default:
		return c, false
	}

	// Config version 4 keeps the address with the plugins, earlier versions in [grpc].
	server := table(at(table(at(tree, "plugins")), "io.containerd.server.v1.grpc"))
	grpc := table(at(tree, "grpc"))
	c.address = cmp.Or(text(at(server, "address")), text(at(grpc, "address")))
	return c, ok
}

// maxFiles is how many files one engine's config may be spread over. More is a mistake, such as a *
// in the wrong place.
const maxFiles = 256

var (
	errTooManyImports = errors.New("it imports more than 256 files")
	errTooManyFiles   = errors.New("it holds more than 256 files")
)

// containerdFiles returns the config file and all it imports, in the order in which containerd
// reads them, and the socket's address if they name one.
//
// containerd works breadth first: a file, then its imports, then theirs; no path twice. Later files
// win. A file that containerd would refuse imports nothing here; its bytes are returned all the
// same.
func (g *gathering) containerdFiles(root, globs string) (files []File, address string) {
	seen := map[string]bool{}
	for pending := []string{root}; len(pending) > 0; pending = pending[1:] {
		name := pending[0]
		if seen[name] {
			continue
		}
		seen[name] = true

		f := File{Path: name}
		if name == root || g.isFile(name) {
			f.Data = g.config(name)
		} else {
			f = g.imported(name)
		}

		files = append(files, f)
		if len(files) == maxFiles {
			g.fail("read", root, errTooManyImports)
			return files, address
		}
		if f.Data == nil {
			continue
		}

		tree, err := g.texts.Values(f.Data)
		config, ok := readContainerd(tree)
		if err != nil || !ok {
			continue
		}
		address = cmp.Or(config.address, address)

		for _, imported := range Absolute(name, config.imports, globs) {
			if strings.Contains(imported, "*") { // containerd takes ? and [ alone literally
				pending = append(pending, g.glob(imported)...)
			} else {
				pending = append(pending, imported)
			}
		}
	}

	return files, address
}

// imported is what containerd's imports name that is not a regular file. A link to /dev/null is a
// file without a byte.
func (g *gathering) imported(name string) File {
	f := File{Path: name}
	info, err := g.v.Stat(name)
	if errors.Is(err, syscall.ELOOP) {
		f.Is = "a link that leads back to itself"
		return f
	}
	if err != nil {
		f.Data = g.config(name)
		return f
	}

	target, err := g.v.Resolve(name)
	if err == nil && target == "/dev/null" {
		f.Data = []byte{}
		return f
	}
	f.Is = host.TypeName(info.Mode)
	return f
}
