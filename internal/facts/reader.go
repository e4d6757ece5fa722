// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// gathering is one reading of all the facts of a machine: the View, what was read once, and the
// first error.
type gathering struct {
	v     host.View
	cache *Cache
	texts *toml.Texts
	comms map[string][]string // the processes of each name, once they were listed
	units [][]string          // the names in systemd's folders, once unitThere has listed them
	cloud instance.Cloud
	rdma  bool // pci has seen a network card that reads and writes GPUs' memory
	err   error

	distributions []distribution // those that start the engine and kubelet themselves
}

// fail keeps the first error; later ones are mostly its echo.
func (g *gathering) fail(verb, object string, err error) {
	if g.err != nil {
		return
	}
	var fileErr *host.FileError
	if errors.As(err, &fileErr) {
		g.err = err // it names verb and object itself
		return
	}
	g.err = fmt.Errorf("cannot %s %s: %w", verb, object, err)
}

// noting is the machine for functions that take a file for missing where it cannot be looked for:
// the gathering notes the error.
type noting struct {
	host.View
	g *gathering
}

func (n noting) Stat(name string) (host.Info, error) {
	info, err := n.View.Stat(name)
	if err != nil && !missing(err) {
		n.g.fail("check", name, err)
	}
	return info, err
}

// missing says whether err means that there is no such file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// read returns a file's bytes, nil if there is no such file.
func (g *gathering) read(name string) []byte {
	data, err := g.content(name)
	if err != nil {
		g.fail("read", name, err)
	}
	return data
}

// content is read, with the error of a file that cannot be read.
func (g *gathering) content(name string) ([]byte, error) {
	data, err := g.v.ReadFile(name)
	switch {
	case err == nil && data == nil:
		return []byte{}, nil // an empty file exists all the same
	case err == nil:
		return data, nil
	case missing(err):
		return nil, nil
	}

	// /dev/null has no content: it masks a unit.
	info, statErr := g.v.Stat(name)
	if statErr == nil && info.Mode&fs.ModeDevice != 0 {
		return nil, nil
	}
	return nil, err
}

// config returns what an engine's file says, where its keys can be read in time.
func (g *gathering) config(name string) []byte {
	data := g.read(name)
	if toml.TooMany(data) {
		g.fail("read", name, toml.ErrTooMany)
		return nil
	}
	return data
}

// attr returns the line in a file of the kernel or systemd, in /proc, /sys or /run; "" if it cannot
// be read, for whatever reason: attributes come and go, and gpuadm needs none that only root
// may read.
func (g *gathering) attr(name string) string {
	b, err := g.v.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// exists says whether name leads to something.
func (g *gathering) exists(name string) bool {
	_, err := g.v.Stat(name)
	if err != nil && !missing(err) {
		g.fail("check", name, err)
	}
	return err == nil
}

// first returns the first of the files that exists, "" if none does.
func (g *gathering) first(names ...string) string {
	for _, n := range names {
		if g.exists(n) {
			return n
		}
	}
	return ""
}

// list returns the names in a folder, sorted; nil if there is no such folder.
func (g *gathering) list(dir string) []string {
	names, err := g.v.ReadDir(dir)
	if err != nil && !missing(err) {
		g.fail("list", dir, err)
	}
	return names
}

// folder returns the names in dir; none if it is something else, such as a link that leads to
// itself.
func (g *gathering) folder(dir string) []string {
	info, err := g.v.Stat(dir)
	switch {
	case missing(err), errors.Is(err, syscall.ELOOP):
		return nil
	case err != nil:
		g.fail("check", dir, err)
		return nil
	case !info.Mode.IsDir():
		return nil
	}

	return g.list(dir)
}

// walk lists the files in a folder and its folders, by name.
func (g *gathering) walk(dir string, depth int) []string {
	var out []string
	for _, name := range g.folder(dir) {
		p := path.Join(dir, name)
		info, err := g.v.Lstat(p)
		switch {
		case err != nil && !missing(err):
			g.fail("check", p, err)
		case err != nil: // another process has removed it
		case !info.Mode.IsDir():
			out = append(out, p)
		case depth < 8:
			out = append(out, g.walk(p, depth+1)...)
		}

		if len(out) > maxFiles {
			g.fail("read", dir, errTooManyFiles)
			return out[:maxFiles]
		}
	}

	return out
}

// glob returns the paths that match, sorted folder by folder like filepath.Glob. An invalid pattern
// matches nothing, and a name without magic characters matches itself if it exists.
func (g *gathering) glob(pattern string) []string {
	if !strings.ContainsAny(pattern, `*?[\`) {
		if g.exists(pattern) {
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
		dirs = g.glob(path.Clean(dir))
	}

	var out []string
	for _, d := range dirs {
		for _, name := range g.folder(d) {
			if ok, _ := path.Match(last, name); ok {
				out = append(out, path.Join(d, name))
			}
		}
	}

	return out
}
