// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/pattern"
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
	g := c.begin(v)
	f := Facts{Live: v.Live(), Baked: v.Runs() && !v.Live(), Day: v.Now().UTC().Format(time.DateOnly)}
	if f.Live {
		f.GPUs, f.RDMA = c.gpus, c.rdma
		if c.gpus = nil; f.GPUs == nil {
			f.GPUs = g.pci()
			f.RDMA = g.rdma
		}
	}
	f.OS, f.Arch, f.Kernel = g.os(), g.arch(), g.kernel()
	f.Cloud = instance.Detect(g.v)
	g.cloud = f.Cloud
	f.Engines = g.engines(ctx, f.OS)
	f.Kubelet = g.kubelet(ctx, f.Engines)
	g.atEndpoint(ctx, &f)
	f.Engines = g.stated(ctx, needs.Engine, f.Engines)
	f.Programs = g.programs(f.Engines)
	g.node(ctx, &f)
	c.needed(ctx, g, &f, needs)
	return f, g.err
}

// Engines finds the container engines, as Gather does, and the stated engine, and nothing else.
func Engines(ctx context.Context, v host.View, s Stated) ([]Engine, error) {
	g := new(Cache).begin(v)
	g.cloud = instance.Detect(g.v)
	found := g.stated(ctx, s, g.engines(ctx, g.os()))
	return found, g.err
}

// needed finds out what was asked for beside.
func (c *Cache) needed(ctx context.Context, g *gathering, f *Facts, needs Needs) {
	if needs.Modules {
		m := g.modules(f.Kernel, f.GPUs, f.Arch, c.modules)
		f.Modules = &m
		f.DriverOwner = g.driverOwner(ctx, m)
	}
	if needs.Modules || needs.Driver {
		f.VGPU = g.vgpu(f.GPUs)
	}
	if needs.Signed != "" {
		f.Signed = g.signed(ctx, *f, needs.Signed)
	}
	if needs.Shared != "" {
		f.Shared = g.shared(*f, needs.Shared)
	}
	if needs.Driver {
		f.MIGOwner, f.DynamicMIG, f.GFD, f.Machine = g.migOwner(f.Kubelet), g.dynamicMIG(), g.gfd(), g.machine()
		d, err := g.v.Driver(ctx)
		none, later := (*host.NoDriver)(nil), host.Later{}
		switch {
		case err == nil:
			f.Driver = &d
		case errors.As(err, &none):
			f.NoDriver, f.NVMLSays, f.DriverAgain = none.Why, none.Code, none.Again
		case errors.As(err, &later):
			f.NoDriver = err.Error()
		default:
			g.fail("ask", "the NVIDIA driver", err)
		}
	}
	c.askCloud(ctx, g, f, needs)
	names := g.files(needs.Files)
	for i := 0; i < len(names); i++ {
		name := names[i]
		if data := g.read(name); data != nil {
			names = append(names, g.mirrorLists(name, data)...)
			if f.Files == nil {
				f.Files, f.Private = map[string][]byte{}, map[string]bool{}
			}
			f.Files[name], f.Private[name] = data, !host.Public(g.v, name)
		}
	}
}

// files puts the files of a folder in the place of a name that ends in a slash.
func (g *gathering) files(names []string) (all []string) {
	for _, name := range names {
		dir, isFolder := strings.CutSuffix(name, "/")
		if !isFolder {
			all = append(all, name)
			continue
		}
		in, err := g.v.ReadDir(dir)
		if err != nil && !missing(err) {
			g.fail("read", dir, err)
		}
		for _, n := range in {
			if i, err := g.v.Stat(name + n); err == nil && i.Mode.IsRegular() {
				all = append(all, name+n)
			}
		}
	}
	return all
}

var mirrorList = pattern.Of(`(?m)^(?:mirrorlist|metalink)\s*=\s*file:/*(/\S+)`)

// mirrorLists are the files of this machine that a file of dnf's repositories names as lists of
// mirrors: dnf.conf(5).
func (g *gathering) mirrorLists(name string, data []byte) (files []string) {
	if path.Ext(name) != ".repo" {
		return nil
	}
	for _, m := range mirrorList().FindAllSubmatch(data, -1) {
		if i, err := g.v.Stat(string(m[1])); err == nil && i.Mode.IsRegular() {
			files = append(files, string(m[1]))
		}
	}
	return files
}
