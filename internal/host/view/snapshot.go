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

	// The answers, by path.
	mu       *sync.Mutex
	stats    map[string]reply[host.Info]
	lstats   map[string]reply[host.Info]
	files    map[string]reply[[]byte]
	folders  map[string]reply[[]string]
	links    map[string]reply[string]
	resolved map[string]reply[string]
	// kernel has the kernel's files, if the snapshot reads these once too; else it is nil.
	kernel map[string]reply[[]byte]

	*driverOnce
}

// driverOnce is the driver's first answer that was not an error. All that come from one
// snapshot share it.
type driverOnce struct {
	driverMu sync.Mutex
	driver   *host.Driver
}

// reply is a View's answer to one question.
type reply[T any] struct {
	value T
	err   error
}

// Snapshot returns a View of the same machine that reads each file, folder and unit once, however
// many facts and things ask for it. It is for code that changes nothing: later changes to the files
// do not show in it. Callers must not write to what it returns. It runs commands, reads parts of
// files (ReadAt) and asks the kernel each time: if a module is loaded meanwhile, all its files show
// that. To keep something for longer than the snapshot, read it from Machine.
func Snapshot(v host.View) host.View {
	if s, is := v.(*snapshot); is {
		return s
	}
	s := &snapshot{
		View:       v,
		mu:         new(sync.Mutex),
		stats:      map[string]reply[host.Info]{},
		lstats:     map[string]reply[host.Info]{},
		files:      map[string]reply[[]byte]{},
		folders:    map[string]reply[[]string]{},
		links:      map[string]reply[string]{},
		resolved:   map[string]reply[string]{},
		driverOnce: new(driverOnce),
	}
	s.moment = systemd.NewMoment(s.ReadDir)
	return s
}

// Machine returns the View under a snapshot, and any other View as it is. If Machine of two Views
// is the same, they show one machine.
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
	s.kernel = map[string]reply[[]byte]{}
	return &s
}

// isKernel reports whether the kernel makes a file, or a running program writes it about itself.
// systemd's folders below /run hold files like others.
func isKernel(name string) bool {
	for _, folder := range []string{"/proc/", "/sys/", "/dev/", "/run/"} {
		if strings.HasPrefix(name, folder) {
			return !strings.HasPrefix(name, "/run/systemd/")
		}
	}
	return false
}

// readOnce reads a name once, unless it is the kernel's.
func readOnce[T any](
	s *snapshot, known map[string]reply[T], name string, read func(string) (T, error),
) (T, error) {
	if isKernel(name) {
		return read(name)
	}
	return recall(s, known, name, read)
}

// recall returns the known answer for a name. If there is none, it reads the name and keeps the
// answer.
func recall[T any](
	s *snapshot, known map[string]reply[T], name string, read func(string) (T, error),
) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := known[name]
	if !ok {
		a.value, a.err = read(name)
		known[name] = a
	}
	return a.value, a.err
}

func (s *snapshot) ReadFile(name string) ([]byte, error) {
	known := s.files
	if isKernel(name) {
		if s.kernel == nil {
			return s.View.ReadFile(name)
		}
		known = s.kernel
	}

	data, err := recall(s, known, name, s.View.ReadFile)
	return slices.Clip(data), err // so one caller's append cannot overwrite another's
}

func (s *snapshot) ReadDir(name string) ([]string, error) {
	names, err := readOnce(s, s.folders, name, s.View.ReadDir)
	return slices.Clone(names), err
}

func (s *snapshot) Stat(name string) (host.Info, error) {
	return readOnce(s, s.stats, name, s.View.Stat)
}

func (s *snapshot) Lstat(name string) (host.Info, error) {
	return readOnce(s, s.lstats, name, s.View.Lstat)
}

func (s *snapshot) Readlink(name string) (string, error) {
	return readOnce(s, s.links, name, s.View.Readlink)
}

func (s *snapshot) Resolve(name string) (string, error) {
	return readOnce(s, s.resolved, name, s.View.Resolve)
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
