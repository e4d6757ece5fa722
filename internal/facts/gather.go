// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/instance"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Gather finds out what the machine is. It reads small files and asks systemd about a few units.
//
// What is missing is an empty field, not an error. An error means that something exists and could
// not be read; the returned facts hold all the rest.
func Gather(ctx context.Context, v host.View, needs Needs) (Facts, error) {
	return new(Cache).Gather(ctx, v, needs)
}

// Gather is the package's Gather, but does not repeat what the cache knows.
func (c *Cache) Gather(ctx context.Context, v host.View, needs Needs) (Facts, error) {
	g := c.begin(v)
	f := Facts{
		Live:  v.Live(),
		Baked: v.Runs() && !v.Live(),
		Day:   v.Now().UTC().Format(time.DateOnly),
	}

	if f.Live {
		g.bus(&f)
	}
	f.OS = g.os()
	f.Arch = g.arch()
	f.Kernel = g.kernel()
	f.Cloud = instance.Detect(noting{g.v, g})
	g.cloud = f.Cloud

	f.Engines = g.engines(ctx, f.OS)
	f.Kubelet = g.kubelet(ctx, f.Engines)
	g.atEndpoint(ctx, &f)
	f.Engines = g.named(ctx, needs.Engine, f.Engines)
	f.Programs = g.programs(f.Engines)

	g.node(ctx, &f)
	g.needed(ctx, &f, needs)
	return f, g.err
}

// Engines finds the container engines and the named engine, as Gather does, and nothing else.
func Engines(ctx context.Context, v host.View, named NamedEngine) ([]Engine, error) {
	g := new(Cache).begin(v)
	g.cloud = instance.Detect(noting{g.v, g})
	found := g.named(ctx, named, g.engines(ctx, g.os()))
	return found, g.err
}

// bus fills in the GPUs on the PCI bus. What Cache.GPUs has found is used once.
func (g *gathering) bus(f *Facts) {
	f.GPUs = g.cache.gpus
	f.RDMA = g.cache.rdma
	g.cache.gpus = nil
	if f.GPUs == nil {
		f.GPUs = g.pci()
		f.RDMA = g.rdma
	}
}

// needed finds out the costly facts that were asked for.
func (g *gathering) needed(ctx context.Context, f *Facts, needs Needs) {
	if needs.Modules {
		modules := g.modules(f.Kernel, f.GPUs, f.Arch)
		f.Modules = &modules
		f.DriverOwner = g.driverOwner(ctx, modules)
	}

	if needs.Modules || needs.Driver {
		f.VGPU = g.vgpu(f.GPUs)
	}
	if needs.Signed != "" {
		f.Signed = g.signed(ctx, *f, needs.Signed)
	}
	if needs.Symbols {
		f.Symbols = g.symbols(*f)
	}

	if needs.Driver {
		if owners := g.migOwners(f.Kubelet); len(owners) > 0 {
			f.MIGOwner = &owners[0]
			f.MIGAlso = owners[1:]
		}
		f.DynamicMIG = g.dynamicMIG()
		f.Clique = g.clique()
		f.GFD = g.gfd()
		f.Machine = g.machine()
		g.askDriver(ctx, f)
	}

	g.askCloud(ctx, f, needs.Cluster)
	g.readFiles(f, needs.Files)
}

// askDriver asks the loaded driver, or notes why none answers.
func (g *gathering) askDriver(ctx context.Context, f *Facts) {
	driver, err := g.v.Driver(ctx)
	if err := f.SetDriver(driver, err); err != nil {
		g.fail("ask", "the NVIDIA driver", err)
	}
}

// SetDriver fills in what the loaded driver says, or why none answers; the error is of a question
// that could not be asked.
func (f *Facts) SetDriver(driver host.Driver, err error) error {
	f.Driver = nil
	f.NoDriver = ""

	var noDriver *host.NoDriver
	var later host.Later
	switch {
	case err == nil:
		f.Driver = &driver
	case errors.As(err, &noDriver):
		f.NoDriver = noDriver.Why
		f.NVMLSays = noDriver.Code
		f.DriverAgain = noDriver.Again
	case errors.As(err, &later):
		f.NoDriver = err.Error()
	default:
		return err
	}

	return nil
}

// readFiles reads the files with these names, and the lists of mirrors that they name.
func (g *gathering) readFiles(f *Facts, wanted []string) {
	names := g.expandFolders(wanted)
	for i := 0; i < len(names); i++ { // names grows
		name := names[i]
		data, err := g.content(name)
		switch {
		case isNoFile(err):
			f.setNoFile(name, err)
			continue
		case err != nil:
			g.fail("read", name, err)
			continue
		case data == nil:
			continue
		}

		names = append(names, g.mirrorLists(name, data)...)

		if f.Files == nil {
			f.Files = map[string][]byte{}
			f.Private = map[string]bool{}
		}
		f.Files[name] = data
		f.Private[name] = !host.Public(g.v, name)
	}
}

// setNoFile notes what is in the place of a file: whoever wants the file says so, with the key that
// names it.
func (f *Facts) setNoFile(name string, err error) {
	why := err.Error()
	var fileErr *host.FileError
	if errors.As(err, &fileErr) {
		why = fileErr.Cause.Error()
	}
	if f.NoFiles == nil {
		f.NoFiles = map[string]string{}
	}
	f.NoFiles[name] = why
}

// isNoFile reports whether an error says that a name leads to a folder, a FIFO or nowhere but to
// itself: no later read finds a file there.
func isNoFile(err error) bool {
	return errors.Is(err, fs.ErrInvalid) || errors.Is(err, syscall.ELOOP)
}

// expandFolders puts the files of a folder in the place of a name that ends in a slash.
func (g *gathering) expandFolders(names []string) (all []string) {
	for _, name := range names {
		dir, isFolder := strings.CutSuffix(name, "/")
		if !isFolder {
			all = append(all, name)
			continue
		}
		entries, err := g.v.ReadDir(dir)
		if err != nil && !missing(err) {
			g.fail("read", dir, err)
		}
		for _, entry := range entries {
			if g.isFile(name + entry) {
				all = append(all, name+entry)
			}
		}
	}
	return all
}

var mirrorList = pattern.Of(`(?m)^(?:mirrorlist|metalink)\s*=\s*file:/*(/\S+)`)

// mirrorLists returns the files of this machine that a file of dnf's repositories names as lists of
// mirrors: dnf.conf(5).
func (g *gathering) mirrorLists(name string, data []byte) (files []string) {
	if path.Ext(name) != ".repo" {
		return nil
	}
	for _, match := range mirrorList().FindAllSubmatch(data, -1) {
		file := string(match[1])
		if g.isFile(file) {
			files = append(files, file)
		}
	}

	return files
}

// isFile says whether name leads to a regular file.
func (g *gathering) isFile(name string) bool {
	info, err := g.v.Stat(name)
	if err != nil && !missing(err) && !isNoFile(err) {
		g.fail("check", name, err)
	}
	return err == nil && info.Mode.IsRegular()
}
