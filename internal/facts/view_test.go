// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
)

// files is the smallest View that serves: a root folder of files by absolute path, without links.
// An error in place of bytes comes back when the file is touched.
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
		return nil, &fs.PathError{
			Op:   "read",
			Path: name,
			Err:  errors.New("is a directory"),
		}
	}

	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func (v files) Stat(name string) (host.Info, error) {
	if c, ok := v[name]; ok {
		s, _ := c.(string)
		return host.Info{Mode: 0o755, Size: int64(len(s))}, nil
	}
	if _, err := v.ReadDir(name); err == nil {
		return host.Info{Mode: 0o755 | fs.ModeDir}, nil
	}
	return host.Info{}, &fs.PathError{
		Op:   "stat",
		Path: name,
		Err:  fs.ErrNotExist,
	}
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

func (files) AskWith(context.Context, []string, ...string) ([]byte, error) {
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

func (files) CUDA(context.Context, string, ...[]string) ([]host.CUDA, error) {
	return nil, nil
}

func (files) OpenDevices(int) ([]host.Device, error) { return nil, nil }

func (f files) Room(string) (host.Room, error) { return host.Room{}, host.FirstBoot }

// FuzzPlain compares code that reads names and versions with the regular expressions that it says
// the same as: an expression takes longer to be compiled than an apply with nothing to do has for
// it.
func FuzzPlain(f *testing.F) {
	version := regexp.MustCompile(`^(?:\d+:)?v?(\d+(?:\.\d+)+)(?:[-~.+]?(alpha|beta|rc)[-.~]?(\d+))?`)
	key := regexp.MustCompile(`(?m) asymmetri (.*): [0-9a-f]+: X509`)
	for _, text := range []string{
		"", "7", "1:2.0.0~rc.1-1", "12:1.2", ":1.2", "1:v1.2.rc1", "v1.2..3", "1.2.", "1.2.betarc3", "1.2+alpha", "1..2", "vv1.2", "1.7.24~ds1-1+deb12u1",
		"1 asymmetri a: b: 0a: X509.rsa\n asymmetri c:0a: X509", " asymmetri a: 0a: X509: b: X509 ", " asymmetri x asymmetri : 1: X509 asymmetri y: 1: X509",
		"x/nvidia-tesla-470-open-drm.ko.xz", "nvidia-legacy-390xx.ko", "nvidia-current-modeset.ko.gz",
	} {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		hasRole(t, text)
		want := ""
		if m := version.FindStringSubmatch(text); m != nil && m[2] != "" {
			want = m[1] + "-" + m[2] + "." + m[3]
		} else if m != nil {
			want = m[1]
		}

		if is := upstream(text); is != want {
			t.Errorf("version in %q: %q, not %q", text, is, want)
		}
		var names []string
		for _, m := range key.FindAllStringSubmatch(text, -1) {
			for _, n := range []string{m[1], m[1][strings.LastIndex(m[1], ": ")+1:]} {
				if n = strings.TrimSpace(n); n != "" && !slices.Contains(names, n) {
					names = append(names, n)
				}
			}
		}

		if is := keyNames(text); !slices.Equal(is, names) {
			t.Errorf("keys in %q: %q, not %q", text, is, names)
		}
	})
}

// TestRoles takes all names of modules of up to four words, and texts that are almost such names.
func TestRoles(t *testing.T) {
	words := []string{"", "-", "-current", "-tesla", "-470", "-legacy", "-390xx", "-open", "-uvm", "-fs", "-x", "fb"}
	for i := range len(words) * len(words) * len(words) * len(words) {
		name := "nvidia"
		for ; i > 0; i /= len(words) {
			name += words[i%len(words)]
		}
		for _, ending := range []string{".ko", ".ko.xz", ".ko.xz.sig", ""} {
			hasRole(t, name+ending)
		}
	}
}

var roles = regexp.MustCompile(`^nvidia(?:-current|-tesla(?:-[0-9]+)?|-legacy-[0-9a-z]+)?(?:-open)?(-uvm|-modeset|-drm|-peermem|-fs|)\.ko(?:\.xz|\.zst|\.gz)?$`)

func hasRole(t *testing.T, file string) {
	t.Helper()
	want := ""
	if m := roles.FindStringSubmatch(path.Base(file)); m != nil {
		want = "nvidia" + m[1]
	}
	check.Equal(t, role(file), want, "role of %q:", file)
}
