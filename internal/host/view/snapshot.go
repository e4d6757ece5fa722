// SPDX-License-Identifier: Apache-2.0

// Package view makes Views of Views: a snapshot reads each name once, a recording notes what was
// asked.
package view

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/systemd"
)

// snapshot is a machine of which each name is read once.
type snapshot struct {
	host.View
	moment *systemd.Moment

	mu    *sync.Mutex
	stats map[string]said[host.Info] // by path
	lstat map[string]said[host.Info]
	files map[string]said[[]byte]
	dirs  map[string]said[[]string]
	links map[string]said[string]
	leads map[string]said[string] // what Resolve said
	*driverOnce
	// kernel is what files of the kernel's own said, for a snapshot that reads these once, too; nil
	// for others.
	kernel map[string]said[[]byte]
}

// driverOnce is the driver's first answer that was no error, shared by all that come from one
// snapshot.
type driverOnce struct {
	driverMu sync.Mutex
	driver   *host.Driver
}

// said is an answer of a View.
type said[T any] struct {
	is  T
	err error
}

// Snapshot returns a View of the same machine that reads each file, folder and unit once, however
// many facts and things want to know. It is for what changes nothing, since under it the files stay
// what they were. What it returns must not be written to. Commands, parts of files (ReadAt) and
// what the kernel says are asked for each time: a module that is loaded meanwhile is loaded in all
// of its files. What is kept for longer than the snapshot is read of Machine.
func Snapshot(v host.View) host.View {
	if s, is := v.(*snapshot); is {
		return s
	}

	s := &snapshot{
		View: v, mu: new(sync.Mutex),
		stats: map[string]said[host.Info]{}, lstat: map[string]said[host.Info]{}, files: map[string]said[[]byte]{},
		dirs: map[string]said[[]string]{}, links: map[string]said[string]{}, leads: map[string]said[string]{},
		driverOnce: new(driverOnce),
	}
	s.moment = systemd.NewMoment(s.ReadDir)
	return s
}

// Machine returns what a snapshot is of, and any other View as it is: by it two Views of one
// machine are known.
func Machine(v host.View) host.View {
	if s, is := v.(*snapshot); is {
		return s.View
	}
	return v
}

// Gathering is Snapshot for facts: it keeps the kernel's files too, so that all facts are of the
// same bytes. Looks read these again.
func Gathering(v host.View) host.View {
	s := *Snapshot(v).(*snapshot)
	s.kernel = map[string]said[[]byte]{}
	return &s
}

// kernels says whether a name is one of the kernel's own, or of what programs say of themselves
// while they run. Systemd's folders below /run are files like others.
func kernels(name string) bool {
	for _, folder := range []string{"/proc/", "/sys/", "/dev/", "/run/"} {
		if strings.HasPrefix(name, folder) {
			return !strings.HasPrefix(name, "/run/systemd/")
		}
	}
	return false
}

// readOnce reads a name once, unless it is the kernel's.
func readOnce[T any](s *snapshot, known map[string]said[T], name string, read func(string) (T, error)) (T, error) {
	if kernels(name) {
		known = nil
	}
	return recall(s, known, name, read)
}

// recall returns what was read of a name, and reads it if it was not, or if nothing is kept.
func recall[T any](s *snapshot, known map[string]said[T], name string, read func(string) (T, error)) (T, error) {
	if known == nil {
		return read(name)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := known[name]
	if !ok {
		a.is, a.err = read(name)
		known[name] = a
	}
	return a.is, a.err
}

func (s *snapshot) ReadFile(name string) ([]byte, error) {
	known := s.files
	if kernels(name) {
		known = s.kernel
	}
	data, err := recall(s, known, name, s.View.ReadFile)
	return slices.Clip(data), err // who appends to it must not write over what another appended
}

func (s *snapshot) ReadDir(name string) ([]string, error) {
	names, err := readOnce(s, s.dirs, name, s.View.ReadDir)
	return slices.Clone(names), err
}

func (s *snapshot) Stat(name string) (host.Info, error) {
	return readOnce(s, s.stats, name, s.View.Stat)
}

func (s *snapshot) Lstat(name string) (host.Info, error) {
	return readOnce(s, s.lstat, name, s.View.Lstat)
}

func (s *snapshot) Readlink(name string) (string, error) {
	return readOnce(s, s.links, name, s.View.Readlink)
}

func (s *snapshot) Resolve(name string) (string, error) {
	return readOnce(s, s.leads, name, s.View.Resolve)
}

// Driver asks the driver once, since each answer opens it and reads all GPUs.
func (s *snapshot) Driver(ctx context.Context) (host.Driver, error) {
	s.driverMu.Lock()
	defer s.driverMu.Unlock()
	if s.driver == nil {
		d, err := s.View.Driver(ctx)
		if err != nil {
			return d, err
		}
		s.driver = &d
	}
	return *s.driver, nil
}

func (s *snapshot) Unit(ctx context.Context, name string) (host.Unit, error) {
	return s.View.Unit(s.moment.In(ctx), name)
}
