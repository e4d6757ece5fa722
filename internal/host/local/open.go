// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package local opens this machine, or a folder with the files of another, as a host.Host: the only place that does.
package local

import (
	"context"
	"net/http"
	"path/filepath"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/systemd"
	"github.com/gpuadm/gpuadm/internal/host/web"
)

// Open opens the machine with its files at root: "/" is the running machine, any other folder an image,
// of which only files can be read and written.
func Open(root string) (host.Host, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, host.Failed("open", root, err)
	}
	disk, err := files.OpenRoot(abs)
	if err != nil {
		return nil, host.Failed("open root folder", root, err)
	}
	if abs == "/" {
		return newLive(disk), nil
	}
	files := files.New(disk)
	return &folder{Files: files, Client: web.NewClient(files), root: abs, dir: disk, lock: runLock{comes: true}}, nil
}

// folder is a machine that does not run: the files of an image or of a mounted disk.
type folder struct {
	*files.Files
	web.Client
	root string // for words: what is done goes by dir
	dir  files.RealDisk
	lock runLock
}

func (f *folder) Root() string   { return f.root }
func (f *folder) Live() bool     { return false }
func (f *folder) Runs() bool     { return false }
func (f *folder) Now() time.Time { return time.Now() }

func (f *folder) Ask(context.Context, ...string) ([]byte, error) { return nil, host.FirstBoot }
func (f *folder) Do(context.Context, ...string) ([]byte, error)  { return nil, host.FirstBoot }

func (f *folder) AskAbout(context.Context, map[string][]byte, ...string) ([]byte, error) {
	return nil, host.FirstBoot
}

func (f *folder) Call(context.Context, string, string, []byte) ([]byte, error) {
	return nil, host.FirstBoot
}

func (f *folder) Unit(_ context.Context, name string) (host.Unit, error) {
	return systemd.UnitOf(f.Files, name)
}

func (f *folder) SetUnit(_ context.Context, name string, to host.UnitChange) error {
	return systemd.SetUnitOf(f.Files, name, to)
}

func (f *folder) Lock() (func(), error) {
	if f.root == "/" { // a bake of this machine excludes an apply
		return f.lock.take(lockFile)
	}
	name, err := nameOfLock(f.dir)
	if err != nil {
		return nil, host.Failed("lock", f.root, err)
	}
	return f.lock.take(name)
}

// A folder's kernel does not run, so no driver answers for its GPUs, and no process is one of it.

func (f *folder) Driver(context.Context) (host.Driver, error)    { return host.Driver{}, host.FirstBoot }
func (f *folder) SetMIGMode(context.Context, string, bool) error { return host.FirstBoot }
func (f *folder) ResetGPUs(context.Context, ...string) error     { return host.FirstBoot }

func (f *folder) CreateInstance(context.Context, string, int, host.Span) (int, error) {
	return 0, host.FirstBoot
}
func (f *folder) DestroyInstance(context.Context, string, int) error { return host.FirstBoot }

func (f *folder) CreateCompute(context.Context, string, int, int, host.Span) (int, error) {
	return 0, host.FirstBoot
}
func (f *folder) DestroyCompute(context.Context, string, int, int) error { return host.FirstBoot }
func (f *folder) SetPersistence(context.Context, string, bool) error     { return host.FirstBoot }
func (f *folder) Terminate(int) error                                    { return host.FirstBoot }
func (f *folder) CUDA(context.Context, string, ...[]string) ([]host.CUDA, error) {
	return nil, host.FirstBoot
}

func (f *folder) AskWeb(host.Web) (http.RoundTripper, error) { return nil, host.FirstBoot }

func (f *folder) DoWeb(host.Web) (http.RoundTripper, error) { return nil, host.FirstBoot }
