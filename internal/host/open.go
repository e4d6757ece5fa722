// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"net/http"
	"path/filepath"
	"time"
)

// Open opens the machine with its files at root: "/" is the running machine, any other folder an image,
// of which only files can be read and written.
func Open(root string) (Host, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fail("open", root, err)
	}
	disk, err := openRoot(abs)
	if err != nil {
		return nil, fail("open root folder", root, err)
	}
	if abs == "/" {
		return newLive(disk), nil
	}
	files := NewFiles(disk)
	return &folder{Files: files, Client: NewClient(files), root: abs, dir: disk, lock: runLock{comes: true}}, nil
}

// folder is a machine that does not run: the files of an image or of a mounted disk.
type folder struct {
	*Files
	Client
	root string // for words: what is done goes by dir
	dir  realDisk
	lock runLock
}

func (f *folder) Root() string   { return f.root }
func (f *folder) Live() bool     { return false }
func (f *folder) Runs() bool     { return false }
func (f *folder) Now() time.Time { return time.Now() }

func (f *folder) Ask(context.Context, ...string) ([]byte, error) { return nil, FirstBoot }
func (f *folder) Do(context.Context, ...string) ([]byte, error)  { return nil, FirstBoot }

func (f *folder) AskAbout(context.Context, map[string][]byte, ...string) ([]byte, error) {
	return nil, FirstBoot
}

func (f *folder) Call(context.Context, string, string, []byte) ([]byte, error) {
	return nil, FirstBoot
}

func (f *folder) Unit(_ context.Context, name string) (Unit, error) { return UnitOf(f.Files, name) }

func (f *folder) SetUnit(_ context.Context, name string, to UnitChange) error {
	return SetUnitOf(f.Files, name, to)
}

func (f *folder) Lock() (func(), error) {
	if f.root == "/" { // a bake of this machine excludes an apply
		return f.lock.take(lockFile)
	}
	name, err := nameOfLock(f.dir)
	if err != nil {
		return nil, fail("lock", f.root, err)
	}
	return f.lock.take(name)
}

// A folder's kernel does not run, so no driver answers for its GPUs, and no process is one of it.

func (f *folder) Driver(context.Context) (Driver, error)         { return Driver{}, FirstBoot }
func (f *folder) SetMIGMode(context.Context, string, bool) error { return FirstBoot }
func (f *folder) ResetGPUs(context.Context, ...string) error     { return FirstBoot }

func (f *folder) CreateInstance(context.Context, string, int, Span) (int, error) {
	return 0, FirstBoot
}
func (f *folder) DestroyInstance(context.Context, string, int) error { return FirstBoot }

func (f *folder) CreateCompute(context.Context, string, int, int, Span) (int, error) {
	return 0, FirstBoot
}
func (f *folder) DestroyCompute(context.Context, string, int, int) error    { return FirstBoot }
func (f *folder) SetPersistence(context.Context, string, bool) error        { return FirstBoot }
func (f *folder) Terminate(int) error                                       { return FirstBoot }
func (f *folder) CUDA(context.Context, string, ...[]string) ([]CUDA, error) { return nil, FirstBoot }

func (f *folder) AskWeb(Web) (http.RoundTripper, error) { return nil, FirstBoot }

func (f *folder) DoWeb(Web) (http.RoundTripper, error) { return nil, FirstBoot }
