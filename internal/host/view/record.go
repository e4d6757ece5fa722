// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
)

// Recorder is a View that records all that is read, so that the machine can be simulated elsewhere with the same answers.
// An allow-list decides what is written down: of all other files only that they exist and their size. What processes do, what daemons and the
// network say, how much room is left and what CUDA answers is not noted.
type Recorder struct {
	host.View

	mu      sync.Mutex
	files   map[string]*recorded // by path, free of links
	absent  map[string]bool
	asked   []answer
	units   map[string]host.Unit
	uptime  time.Duration
	driver  host.Driver
	none    *host.NoDriver // why no driver answered
	started time.Time      // when the recording began
}

// recorded is one thing in the tree.
type recorded struct {
	info host.Info
	link string
	data []byte // if read says so
	read bool
}

// answer is what a command said.
type answer struct {
	argv   []string
	stdout []byte
	err    error
}

// Record wraps a View.
func Record(v host.View) *Recorder {
	return &Recorder{View: v, files: map[string]*recorded{}, absent: map[string]bool{}, units: map[string]host.Unit{}, started: v.Now()}
}

// ReadFile is View's.
func (r *Recorder) ReadFile(name string) ([]byte, error) {
	data, err := r.View.ReadFile(name)
	if found := r.note(name, true); found != nil && err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		found.data, found.read = slices.Clone(data), true
	}
	return data, err
}

// Stat is View's.
func (r *Recorder) Stat(name string) (host.Info, error) {
	r.note(name, true)
	return r.View.Stat(name)
}

// Lstat is View's.
func (r *Recorder) Lstat(name string) (host.Info, error) {
	r.note(name, false)
	return r.View.Lstat(name)
}

// Readlink is View's.
func (r *Recorder) Readlink(name string) (string, error) {
	r.note(name, false)
	return r.View.Readlink(name)
}

// ReadDir is View's. What the names are is noted too: a link, a folder, how big a file.
func (r *Recorder) ReadDir(name string) ([]string, error) {
	names, err := r.View.ReadDir(name)
	r.note(name, true)
	for _, below := range names {
		r.note(path.Join(name, below), false)
	}
	return names, err
}

// Resolve is View's.
func (r *Recorder) Resolve(name string) (string, error) {
	r.note(name, true)
	return r.View.Resolve(name)
}

// Ask is View's.
func (r *Recorder) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	stdout, err := r.View.Ask(ctx, argv...)
	if !errors.As(err, new(host.Later)) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked = append(r.asked, answer{slices.Clone(argv), slices.Clone(stdout), err})
	}
	return stdout, err
}

// ReadAt is View's. What parts of binaries say is not noted; of a text all is.
func (r *Recorder) ReadAt(name string, p []byte, off int64) (int, error) {
	n, err := r.View.ReadAt(name, p, off)
	if n > 0 && !bytes.Contains(p[:n], []byte{0}) {
		_, _ = r.ReadFile(name)
	} else {
		r.note(name, true)
	}
	return n, err
}

// Unit is View's. The unit's files are noted too.
func (r *Recorder) Unit(ctx context.Context, name string) (host.Unit, error) {
	u, err := r.View.Unit(ctx, name)
	if err == nil {
		r.mu.Lock()
		r.units[name], r.uptime = u, u.Uptime
		r.mu.Unlock()
	}
	for _, file := range u.Files {
		_, _ = r.ReadFile(file)
	}
	return u, err
}

// note notes a name and all links and folders on the way to it, and returns what is there.
func (r *Recorder) note(name string, follow bool) *recorded {
	at, rest := "/", files.Parts(name)
	for hops := 0; len(rest) > 0 && hops <= files.MaxHops; {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		found := r.noteOne(next)
		switch {
		case found == nil:
			return nil
		case found.info.Mode&fs.ModeSymlink == 0:
			at = next
		case len(rest) == 0 && !follow:
			return found
		default:
			hops++
			if strings.HasPrefix(found.link, "/") {
				at = "/"
			}
			rest = append(files.Parts(found.link), rest...)
		}
	}
	return r.noteOne(at)
}

// noteOne notes one path that is free of links but for its last part.
func (r *Recorder) noteOne(name string) *recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.files[name]; found != nil {
		return found
	}
	i, err := r.View.Lstat(name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			r.absent[name] = true
		}
		return nil
	}
	found := &recorded{info: i}
	if i.Mode&fs.ModeSymlink != 0 {
		found.link, _ = r.View.Readlink(name)
	}
	r.files[name] = found
	return found
}

// Driver is View's.
func (r *Recorder) Driver(ctx context.Context) (host.Driver, error) {
	found, err := r.View.Driver(ctx)
	none := (*host.NoDriver)(nil)
	if err == nil || errors.As(err, &none) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.driver, r.none = found, none
	}
	return found, err
}
