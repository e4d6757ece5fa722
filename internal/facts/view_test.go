// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// files is the smallest View that serves: a root folder of files by absolute path, without links. An error in place of
// bytes comes back when the file is touched.
type files map[string]any

func (files) Root() string   { return "/test" }
func (files) Live() bool     { return false }
func (files) Runs() bool     { return false }
func (files) Now() time.Time { return time.Unix(0, 0) }

func (v files) ReadFile(name string) ([]byte, error) {
	switch c := v[name].(type) {
	case string:
		return []byte(c), nil
	case []byte:
		return c, nil
	case error:
		return nil, &fs.PathError{Op: "open", Path: name, Err: c}
	}
	if _, err := v.Stat(name); err == nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("is a directory")}
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func (v files) Stat(name string) (host.Info, error) {
	if c, ok := v[name]; ok {
		s, _ := c.(string)
		return host.Info{Mode: 0o644, Size: int64(len(s))}, nil
	}
	if _, err := v.ReadDir(name); err == nil {
		return host.Info{Mode: 0o755 | fs.ModeDir}, nil
	}
	return host.Info{}, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
}

func (v files) Lstat(name string) (host.Info, error) { return v.Stat(name) }

func (files) Readlink(name string) (string, error) {
	return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrNotExist}
}

func (v files) ReadDir(name string) ([]string, error) {
	var names []string
	for p := range v {
		if rest, ok := strings.CutPrefix(p, strings.TrimSuffix(name, "/")+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			names = append(names, first)
		}
	}
	if names == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (v files) ReadAt(name string, p []byte, off int64) (int, error) {
	data, err := v.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return bytes.NewReader(data).ReadAt(p, off)
}

func (files) AskAbout(context.Context, map[string][]byte, ...string) ([]byte, error) {
	return nil, host.FirstBoot
}

func (files) Call(context.Context, string, string, []byte) ([]byte, error) {
	return nil, host.FirstBoot
}

func (files) Trusted(...string) error { return nil }

func (files) Resolve(name string) (string, error) { return name, nil }

func (files) Ask(context.Context, ...string) ([]byte, error) {
	return nil, host.FirstBoot
}

func (v files) Unit(_ context.Context, name string) (host.Unit, error) {
	u := host.Unit{Load: "not-found"}
	for _, dir := range []string{"/etc/systemd/system", "/usr/lib/systemd/system"} {
		if _, ok := v[path.Join(dir, name)]; ok {
			u.Load = "loaded"
			u.Files = append(u.Files, path.Join(dir, name))
			break
		}
	}
	names, _ := v.ReadDir("/etc/systemd/system/" + name + ".d")
	for _, n := range names {
		u.Files = append(u.Files, "/etc/systemd/system/"+name+".d/"+n)
	}
	return u, host.FirstBoot
}

func (files) Driver(context.Context) (host.Driver, error) {
	return host.Driver{}, host.FirstBoot
}

func (f files) Fetch(context.Context, host.Request) ([]byte, error) {
	return nil, host.FirstBoot
}

func (f files) AskWeb(host.Web) (http.RoundTripper, error) {
	return nil, host.FirstBoot
}

func (files) CUDA(context.Context, string, ...[]string) ([]host.CUDA, error) { return nil, nil }
func (files) OpenDevices(int) ([]host.Device, error)                         { return nil, nil }

func (f files) Room(string) (host.Room, error) { return host.Room{}, host.FirstBoot }
