// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/view"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/toml"
)

// Gather finds out what the machine is. It reads small files and asks systemd about a few units.
//
// What is missing is an empty field, not an error. An error means that something is there and could
// not be read; the facts beside it hold all the rest.
func Gather(ctx context.Context, v host.View, needs Needs) (Facts, error) {
	return new(Cache).Gather(ctx, v, needs)
}

// Gather is the package's Gather, but does not repeat what the cache knows.
func (c *Cache) Gather(ctx context.Context, v host.View, needs Needs) (Facts, error) {
	l := c.look(v)
	f := Facts{Live: v.Live(), Baked: v.Runs() && !v.Live(), Day: v.Now().UTC().Format(time.DateOnly)}
	if f.Live {
		f.GPUs, f.RDMA = c.gpus, c.rdma
		if c.gpus = nil; f.GPUs == nil {
			f.GPUs = l.pci()
			f.RDMA = l.rdma
		}
	}
	f.OS, f.Arch, f.Kernel = l.os(), l.arch(), l.kernel()
	f.Cloud = instance.Detect(l.v)
	l.cloud = f.Cloud
	f.Engines = l.engines(ctx, f.OS)
	f.Kubelet = l.kubelet(ctx, f.Engines)
	l.atEndpoint(ctx, &f)
	f.Engines = l.stated(ctx, needs.Engine, f.Engines)
	f.Programs = l.programs(f.Engines)
	l.node(ctx, &f)
	c.needed(ctx, l, &f, needs)
	return f, l.err
}

// Engines finds the container engines, as Gather does, and the stated engine, and nothing else.
func Engines(ctx context.Context, v host.View, s Stated) ([]Engine, error) {
	l := new(Cache).look(v)
	l.cloud = instance.Detect(l.v)
	found := l.stated(ctx, s, l.engines(ctx, l.os()))
	return found, l.err
}

// GPUs are the GPUs of Gather's facts, from the PCI bus alone. The next Gather takes them as they
// were found here.
func (c *Cache) GPUs(v host.View) ([]PCI, error) {
	l := c.look(v)
	all := l.pci()
	if l.err == nil {
		c.gpus, c.rdma = all, l.rdma
	}
	return all, l.err
}

// Changes says that the machine is changed: what GPUs found need not hold.
func (c *Cache) Changes() { c.gpus = nil }

// look reads each file once, so that all facts are of the same bytes.
func (c *Cache) look(v host.View) *look {
	of := view.Machine(v)
	if c.view == nil || !reflect.ValueOf(of).Comparable() || c.view != of {
		*c = Cache{view: of, texts: new(toml.Texts), modules: new(ModuleCache)} // another machine, or a view that cannot be compared
	}
	return &look{v: view.Gathering(v), cache: c, texts: c.texts}
}

// needed finds out what was asked for beside.
func (c *Cache) needed(ctx context.Context, l *look, f *Facts, needs Needs) {
	if needs.Modules {
		m := l.modules(f.Kernel, f.GPUs, f.Arch, c.modules)
		f.Modules = &m
		f.DriverOwner = l.driverOwner(ctx, m)
	}
	if needs.Modules || needs.Driver {
		f.VGPU = l.vgpu(f.GPUs)
	}
	if needs.Signed != "" {
		f.Signed = l.signed(ctx, *f, needs.Signed)
	}
	if needs.Shared != "" {
		f.Shared = l.shared(*f, needs.Shared)
	}
	if needs.Driver {
		f.MIGOwner, f.DynamicMIG, f.GFD, f.Machine = l.migOwner(f.Kubelet), l.dynamicMIG(), l.gfd(), l.machine()
		d, err := l.v.Driver(ctx)
		none, later := (*host.NoDriver)(nil), host.Later{}
		switch {
		case err == nil:
			f.Driver = &d
		case errors.As(err, &none):
			f.NoDriver, f.NVMLSays, f.DriverAgain = none.Why, none.Code, none.Again
		case errors.As(err, &later):
			f.NoDriver = err.Error()
		default:
			l.fail("ask", "the NVIDIA driver", err)
		}
	}
	c.askCloud(ctx, l, f, needs)
	names := l.files(needs.Files)
	for i := 0; i < len(names); i++ {
		name := names[i]
		if data := l.read(name); data != nil {
			names = append(names, l.mirrorLists(name, data)...)
			if f.Files == nil {
				f.Files, f.Private = map[string][]byte{}, map[string]bool{}
			}
			f.Files[name], f.Private[name] = data, !host.Public(l.v, name)
		}
	}
}

// look is one gathering of a machine's facts: the View, and the first error.
type look struct {
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

// files puts the files of a folder in the place of a name that ends in a slash.
func (l *look) files(names []string) (all []string) {
	for _, name := range names {
		dir, isFolder := strings.CutSuffix(name, "/")
		if !isFolder {
			all = append(all, name)
			continue
		}
		in, err := l.v.ReadDir(dir)
		if err != nil && !missing(err) {
			l.fail("read", dir, err)
		}
		for _, n := range in {
			if i, err := l.v.Stat(name + n); err == nil && i.Mode.IsRegular() {
				all = append(all, name+n)
			}
		}
	}
	return all
}

var mirrorList = pattern.Of(`(?m)^(?:mirrorlist|metalink)\s*=\s*file:/*(/\S+)`)

// mirrorLists are the files of this machine that a file of dnf's repositories names as lists of
// mirrors: dnf.conf(5).
func (l *look) mirrorLists(name string, data []byte) (files []string) {
	if path.Ext(name) != ".repo" {
		return nil
	}
	for _, m := range mirrorList().FindAllSubmatch(data, -1) {
		if i, err := l.v.Stat(string(m[1])); err == nil && i.Mode.IsRegular() {
			files = append(files, string(m[1]))
		}
	}
	return files
}

// fail keeps the first error; later ones are mostly its echo.
func (l *look) fail(verb, object string, err error) {
	if l.err != nil {
		return
	}
	var fileErr *host.FileError
	if errors.As(err, &fileErr) {
		l.err = err // it names verb and object itself
		return
	}
	l.err = fmt.Errorf("cannot %s %s: %w", verb, object, err)
}

// missing says whether err means that there is no such file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// read returns a file's bytes, nil if there is no such file.
func (l *look) read(name string) []byte {
	b, err := l.v.ReadFile(name)
	switch {
	case err == nil && b == nil:
		return []byte{} // an empty file is there all the same
	case err == nil:
		return b
	case missing(err):
	default:
		if i, no := l.v.Stat(name); no != nil || i.Mode&fs.ModeDevice == 0 { // /dev/null has no content: so a unit is masked
			l.fail("read", name, err)
		}
	}
	return nil
}

// config returns what an engine's file says, where its keys can be read in time.
func (l *look) config(name string) []byte {
	data := l.read(name)
	if toml.TooMany(data) {
		l.fail("read", name, toml.ErrTooMany)
		return nil
	}
	return data
}

// attr returns one line that the kernel or systemd says in a file of /proc, /sys or /run; "" if it
// does not say it, for whatever reason: attributes come and go, and what only root may read is no
// loss.
func (l *look) attr(name string) string {
	b, err := l.v.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// has says whether name leads to something.
func (l *look) has(name string) bool {
	_, err := l.v.Stat(name)
	if err != nil && !missing(err) {
		l.fail("check", name, err)
	}
	return err == nil
}

// first returns the first of the names that is there, "" if none.
func (l *look) first(names ...string) string {
	for _, n := range names {
		if l.has(n) {
			return n
		}
	}
	return ""
}

// names returns the names in a folder, sorted; nil if there is no such folder.
func (l *look) names(dir string) []string {
	names, err := l.v.ReadDir(dir)
	if err != nil && !missing(err) {
		l.fail("list", dir, err)
	}
	return names
}
