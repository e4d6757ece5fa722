// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
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
	return &folder{Files: NewFiles(disk), root: abs, dir: disk, lock: runLock{comes: true}}, nil
}

// folder is a machine that does not run: the files of an image or of a mounted disk.
type folder struct {
	*Files
	root string // for words: what is done goes by dir
	dir  realDisk
	lock runLock
}

func (f *folder) Root() string   { return f.root }
func (f *folder) Live() bool     { return false }
func (f *folder) Runs() bool     { return false }
func (f *folder) Now() time.Time { return time.Now() }

// firstBoot is when all can be done that a folder cannot.
func firstBoot() error { return FirstBoot }

func (f *folder) Ask(context.Context, ...string) ([]byte, error) { return nil, firstBoot() }
func (f *folder) Do(context.Context, ...string) ([]byte, error)  { return nil, firstBoot() }

func (f *folder) AskAbout(context.Context, map[string][]byte, ...string) ([]byte, error) {
	return nil, firstBoot()
}

func (f *folder) Call(context.Context, string, string, []byte) ([]byte, error) {
	return nil, firstBoot()
}

func (f *folder) Unit(_ context.Context, name string) (Unit, error) { return UnitOf(f.Files, name) }

func (f *folder) SetUnit(_ context.Context, name string, to UnitChange) error {
	return SetUnitOf(f.Files, name, to)
}

// UnitOf describes a unit by its files alone, with the error Later.
func UnitOf(files *Files, name string) (Unit, error) {
	found, err := files.units(files.ReadDir).read(name)
	if err != nil {
		return found.Unit, err
	}
	return found.Unit, firstBoot()
}

// SetUnitOf changes a unit's links; if a job is wanted too, the error is a Later all the same.
func SetUnitOf(files *Files, name string, to UnitChange) error {
	if err := files.units(files.ReadDir).set(name, to.File); err != nil {
		return err
	}
	if to.Job != "" {
		return firstBoot()
	}
	return nil
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
