// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
)

// patience says how long a command that only reads waits for each part of the machine. It waits for
// CUDA until it answers, and longer for a driver that answers for one GPU after the other:
// internal/host/nvml.
type patience struct {
	driver   time.Duration
	call     time.Duration // of a daemon, by its socket
	systemd  time.Duration
	program  time.Duration
	packager time.Duration // a program that reads a database of thousands of packages
	file     time.Duration // of a disk, or of a file system on a server
}

// soon is for commands that an operator waits for; patiently is for commands that compare the machine
// with its spec.
func soon() patience {
	return patience{
		driver:   10 * time.Second,
		call:     2 * time.Second,
		systemd:  2 * time.Second,
		program:  2 * time.Second,
		packager: 5 * time.Second,
		file:     5 * time.Second,
	}
}

func patiently() patience {
	return patience{
		driver:   30 * time.Second,
		call:     10 * time.Second,
		systemd:  10 * time.Second,
		program:  30 * time.Second,
		packager: 30 * time.Second,
		file:     30 * time.Second,
	}
}

// Deadline is the time by which everything that a command asks has to answer.
type Deadline struct {
	whole time.Duration
	ends  time.Time
}

// DeadlineIn begins a deadline, so long from now.
func DeadlineIn(whole time.Duration) Deadline {
	return Deadline{whole: whole, ends: time.Now().Add(whole)}
}

// Left is how long the answer to a question of now may take. A question that comes late, because
// another answer was slow, still has half of the whole time.
func (d Deadline) Left() time.Duration {
	left := time.Until(d.ends).Round(100 * time.Millisecond)
	return max(left, d.whole/2)
}

// within is a machine that a command which only reads never waits for long. It asks nothing again
// that has not answered once.
type within struct {
	host.View
	patience
	all    *Deadline     // takes the place of the limits; nil for none
	asked  sync.Once     // the driver
	said   chan struct{} // closed once driver is known
	driver reply[host.Driver]

	// silent has the errors of what did not answer, by name: a program, systemd, a folder, or
	// unix:SOCKET.
	silent sync.Map
}

func newWithin(v host.View, alone patience, all *Deadline) *within {
	return &within{
		View:     v,
		patience: alone,
		all:      all,
		said:     make(chan struct{}),
	}
}

// Within returns a View of the same machine that waits for no answer for long. It asks the driver
// once, in another process where it can.
func Within(v host.View) host.View { return newWithin(v, soon(), nil) }

// WithinAll is Within with one deadline in the place of all limits. It is CUDA's, too.
func WithinAll(v host.View, all Deadline) host.View {
	return newWithin(v, patience{}, &all)
}

// Patiently is Within with longer limits.
func Patiently(v host.View) host.View { return newWithin(v, patiently(), nil) }

// limit is how long the answer to a question of now may take: what the deadline leaves, or alone
// where there is none.
func (w *within) limit(alone time.Duration) time.Duration {
	if w.all == nil {
		return alone
	}
	return w.all.Left()
}

// Driver is View's.
func (w *within) Driver(ctx context.Context) (host.Driver, error) {
	w.asked.Do(func() {
		go func() {
			defer close(w.said)
			w.driver.value, w.driver.err = apart(ctx, w.View, w.limit(w.patience.driver))
		}()
	})
	<-w.said
	return w.driver.value, w.driver.err
}

// driverWithin is a View that can ask the driver in another process.
type driverWithin interface {
	DriverWithin(ctx context.Context, limit time.Duration) (host.Driver, error)
}

// apart asks the driver in another process where it can.
func apart(ctx context.Context, v host.View, limit time.Duration) (host.Driver, error) {
	if v, can := v.(driverWithin); can {
		return v.DriverWithin(ctx, limit)
	}
	return v.Driver(ctx)
}

// cudaWithin is a View that does not wait long for a CUDA that hangs.
type cudaWithin interface {
	CUDAWithin(ctx context.Context, limit time.Duration, of string, shown ...[]string) ([]host.CUDA, error)
}

// CUDA is View's.
func (w *within) CUDA(ctx context.Context, of string, shown ...[]string) ([]host.CUDA, error) {
	v, can := w.View.(cudaWithin)
	if !can || w.all == nil {
		return w.View.CUDA(ctx, of, shown...)
	}
	return v.CUDAWithin(ctx, w.all.Left(), of, shown...)
}

// apartHost is a machine whose driver is asked in another process.
type apartHost struct{ host.Host }

// Apart returns the same machine. It asks the driver in another process each time, but for calls
// that share a session: a call that hangs in this process would keep it from ending.
func Apart(h host.Host) host.Host { return apartHost{h} }

// Driver is View's.
func (a apartHost) Driver(ctx context.Context) (host.Driver, error) {
	if host.KeptOf(ctx) != nil {
		return a.Host.Driver(ctx)
	}
	return apart(ctx, a.Host, soon().driver)
}

// Call is View's.
func (w *within) Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	daemon := "unix:" + socket // the socket's file answers all the same
	if err := w.hasNotAnswered(daemon); err != nil {
		return nil, err
	}

	limit := w.limit(w.call)
	late := fmt.Errorf("no answer within %v", limit)
	ctx, end := context.WithTimeoutCause(ctx, limit, late)
	defer end()
	answer, err := w.View.Call(ctx, socket, method, request)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		w.silent.Store(daemon, err)
	}
	return answer, err
}

// Ask is View's.
func (w *within) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	return w.ask(ctx, argv, func(ctx context.Context) ([]byte, error) {
		return w.View.Ask(ctx, argv...)
	})
}

// AskWith is View's.
func (w *within) AskWith(ctx context.Context, env []string, argv ...string) ([]byte, error) {
	return w.ask(ctx, argv, func(ctx context.Context) ([]byte, error) {
		return w.View.AskWith(ctx, env, argv...)
	})
}

// AskAbout is View's.
func (w *within) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error) {
	return w.ask(ctx, argv, func(ctx context.Context) ([]byte, error) {
		return w.View.AskAbout(ctx, files, argv...)
	})
}

// ask asks a program.
func (w *within) ask(
	ctx context.Context, argv []string, run func(context.Context) ([]byte, error),
) ([]byte, error) {
	program := path.Base(argv[0])
	if err := w.hasNotAnswered(program); err != nil {
		return nil, err
	}

	limit := w.limit(w.program)
	packagers := []string{"rpm", "dnf", "zypper", "dpkg", "dpkg-query", "apt-get", "apt-cache"}
	if slices.Contains(packagers, program) {
		limit = w.limit(w.packager)
	}
	late := host.OverLimit{Limit: limit}
	ctx, end := context.WithTimeoutCause(ctx, limit, late)
	defer end()
	out, err := run(ctx)
	isLate := errors.As(err, new(host.OverLimit)) || errors.Is(context.Cause(ctx), late)
	if err != nil && len(out) == 0 && isLate {
		err = &host.CommandError{Argv: argv, Code: -1, Cause: late}
		w.silent.Store(program, err)
	}
	return out, err
}

// hasNotAnswered is the error of what did not answer before; nil if it did, or was not asked.
func (w *within) hasNotAnswered(name string) error {
	err, silent := w.silent.Load(name)
	if !silent {
		return nil
	}
	return err.(error)
}

// Unit is View's.
func (w *within) Unit(ctx context.Context, name string) (host.Unit, error) {
	const systemd = "systemd"
	if err := w.hasNotAnswered(systemd); err != nil {
		return host.Unit{}, err
	}

	limit := w.limit(w.systemd)
	late := fmt.Errorf("systemd has not answered within %v", limit)
	unit, err := replyOf(limit, late, func() (host.Unit, error) {
		return w.View.Unit(ctx, name)
	})
	if errors.Is(err, late) {
		w.silent.Store(systemd, late)
	}
	return unit, err
}

// replyOf is a call's answer, or late where that takes longer than the limit: the call
// is abandoned.
func replyOf[T any](limit time.Duration, late error, call func() (T, error)) (T, error) {
	replies := make(chan reply[T], 1)
	go func() {
		value, err := call()
		replies <- reply[T]{value, err}
	}()

	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r := <-replies:
		return r.value, r.err
	case <-timer.C:
		var none T
		return none, late
	}
}

// file reads something of a file. A file system that does not answer, since its server is gone, is
// not asked again.
func file[T any](w *within, name string, read func() (T, error)) (T, error) {
	var none T
	for folder := name; ; folder = path.Dir(folder) {
		if err := w.hasNotAnswered(folder); err != nil {
			return none, err
		}
		if folder == "/" || folder == "." {
			break
		}
	}

	limit := w.limit(w.file)
	late := errors.New("no answer")
	value, err := replyOf(limit, late, read)
	if errors.Is(err, late) {
		folder := w.fileSystem(name)
		err = fmt.Errorf("the file system of %s has not answered within %v", folder, limit)
		w.silent.Store(folder, err)
	}

	return value, err
}

// fileSystem is the folder on which the file system of a name is mounted. In /proc a process that
// hangs has files that hang, and the other files answer.
func (w *within) fileSystem(name string) string {
	parts := strings.Split(name, "/")
	if len(parts) > 3 && parts[1] == "proc" {
		return path.Join("/proc", parts[2])
	}

	found := "/"
	mounts, _ := w.View.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || len(fields[1]) <= len(found) {
			continue
		}
		if name == fields[1] || strings.HasPrefix(name, fields[1]+"/") {
			found = fields[1]
		}
	}

	return found
}

// ReadFile is View's.
func (w *within) ReadFile(name string) ([]byte, error) {
	return file(w, name, func() ([]byte, error) { return w.View.ReadFile(name) })
}

// ReadAt is View's. A call that was abandoned does not write to p.
func (w *within) ReadAt(name string, p []byte, off int64) (int, error) {
	own := make([]byte, len(p))
	n, err := file(w, name, func() (int, error) { return w.View.ReadAt(name, own, off) })
	copy(p, own[:n])
	return n, err
}

// Stat is View's.
func (w *within) Stat(name string) (host.Info, error) {
	return file(w, name, func() (host.Info, error) { return w.View.Stat(name) })
}

// Lstat is View's.
func (w *within) Lstat(name string) (host.Info, error) {
	return file(w, name, func() (host.Info, error) { return w.View.Lstat(name) })
}

// Readlink is View's.
func (w *within) Readlink(name string) (string, error) {
	return file(w, name, func() (string, error) { return w.View.Readlink(name) })
}

// ReadDir is View's.
func (w *within) ReadDir(name string) ([]string, error) {
	return file(w, name, func() ([]string, error) { return w.View.ReadDir(name) })
}

// Resolve is View's.
func (w *within) Resolve(name string) (string, error) {
	return file(w, name, func() (string, error) { return w.View.Resolve(name) })
}

// Room is View's.
func (w *within) Room(name string) (host.Room, error) {
	return file(w, name, func() (host.Room, error) { return w.View.Room(name) })
}

// OpenDevices is View's.
func (w *within) OpenDevices(pid int) ([]host.Device, error) {
	name := fmt.Sprintf("/proc/%d/fd", pid)
	return file(w, name, func() ([]host.Device, error) { return w.View.OpenDevices(pid) })
}
