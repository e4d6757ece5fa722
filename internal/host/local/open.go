// SPDX-License-Identifier: Apache-2.0

// Package local opens this machine, or a folder with the files of another, as a host.Host: the only
// place that does.
package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/host/nvml"
	"github.com/gpuadm/gpuadm/internal/host/systemd"
	"github.com/gpuadm/gpuadm/internal/host/web"
)

// Open opens the machine with its files at root: "/" is the running machine, any other folder an
// image, of which only files can be read and written.
func Open(root string) (host.Host, error) { return OpenFollowed(root, nil) }

// OpenFollowed is Open, and follow receives what the programs print that change the machine; may be
// nil.
func OpenFollowed(root string, follow commands.Follow) (host.Host, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, host.Failed("open", root, err)
	}

	disk, err := files.OpenRoot(abs)
	if err != nil {
		return nil, cannotOpen(root, err)
	}
	if abs == "/" {
		return newLive(disk, follow), nil
	}
	return newFolder(abs, disk, disk), nil
}

// NoFolder is the error of a root folder that is not there, or is a file, such as an image that is
// not mounted.
type NoFolder struct{ Cause error }

func (n *NoFolder) Error() string { return n.Cause.Error() }
func (n *NoFolder) Unwrap() error { return n.Cause }

// cannotOpen says why a root folder cannot be opened.
func cannotOpen(root string, err error) error {
	isFile := errors.Is(err, syscall.ENOTDIR)
	isMissing := errors.Is(err, syscall.ENOENT)
	if isFile || isMissing {
		err = &NoFolder{err}
	}
	return host.Failed("open root folder", root, err)
}

// folder is a machine that does not run: the files of an image or of a mounted disk.
type folder struct {
	*files.Files
	web.Client
	root string // for messages
	dir  files.RealDisk
	lock runLock
}

// newFolder opens the files of a disk. root and dir name the folder that is locked.
func newFolder(root string, dir, disk files.RealDisk) *folder {
	files := files.New(disk)
	return &folder{
		Files:  files,
		Client: web.NewClient(files),
		root:   root,
		dir:    dir,
	}
}

func (f *folder) Root() string   { return f.root }
func (f *folder) Live() bool     { return false }
func (f *folder) Runs() bool     { return false }
func (f *folder) Now() time.Time { return time.Now() }

func (f *folder) Ask(context.Context, ...string) ([]byte, error) {
	return nil, host.FirstBoot
}

func (f *folder) Do(context.Context, ...string) ([]byte, error) {
	return nil, host.FirstBoot
}

func (f *folder) AskWith(context.Context, []string, ...string) ([]byte, error) {
	return nil, host.FirstBoot
}

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
	name, err := lockFileOf(f.dir)
	if err != nil {
		return nil, host.Failed("lock", f.root, err)
	}
	return f.lock.take(name)
}

// The kernel of a folder does not run: no driver answers for GPUs, and no process belongs to it.

func (f *folder) Driver(context.Context) (host.Driver, error) {
	return host.Driver{}, host.FirstBoot
}

func (f *folder) SetMIGMode(context.Context, string, bool) error { return host.FirstBoot }
func (f *folder) ResetGPUs(context.Context, ...string) error     { return host.FirstBoot }

func (f *folder) CreateInstance(context.Context, string, int, host.Span) (int, error) {
	return 0, host.FirstBoot
}

func (f *folder) DestroyInstance(context.Context, string, int) error {
	return host.FirstBoot
}

func (f *folder) CreateCompute(context.Context, string, int, int, host.Span) (int, error) {
	return 0, host.FirstBoot
}

func (f *folder) DestroyCompute(context.Context, string, int, int) error {
	return host.FirstBoot
}

func (f *folder) SetPersistence(context.Context, string, bool) error {
	return host.FirstBoot
}

func (f *folder) Terminate(int) error { return host.FirstBoot }
func (f *folder) CUDA(context.Context, string, ...[]string) ([]host.CUDA, error) {
	return nil, host.FirstBoot
}

func (f *folder) AskWeb(host.Web) (http.RoundTripper, error) {
	return nil, host.FirstBoot
}

func (f *folder) DoWeb(host.Web) (http.RoundTripper, error) { return nil, host.FirstBoot }

// live is the running machine.
type live struct {
	*files.Files
	web.Client
	*nvml.NVML
	runner commands.Runner
	units  *systemd.Manager
	lock   runLock
	cuda   *nvml.CUDA
}

func newLive(disk files.RealDisk, follow commands.Follow) *live {
	files := files.NewLive(disk)
	runner := commands.New()
	runner.Follow = follow
	return &live{
		Files:  files,
		Client: web.NewClient(files),
		NVML:   nvml.New(files),
		runner: runner,
		units:  systemd.New(files),
		cuda:   nvml.NewCUDA(files),
	}
}

func (l *live) Root() string   { return "/" }
func (l *live) Live() bool     { return true }
func (l *live) Runs() bool     { return true }
func (l *live) Now() time.Time { return time.Now() }

func (l *live) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	return l.runner.Ask(ctx, argv)
}

func (l *live) AskWith(ctx context.Context, env []string, argv ...string) ([]byte, error) {
	return l.runner.AskWith(ctx, env, argv)
}

func (l *live) Do(ctx context.Context, argv ...string) ([]byte, error) {
	return l.runner.Do(ctx, argv, l.lock.file())
}

func (l *live) Unit(ctx context.Context, name string) (host.Unit, error) {
	return l.units.Unit(ctx, name)
}

func (l *live) SetUnit(ctx context.Context, name string, to host.UnitChange) error {
	return l.units.Set(ctx, name, to)
}

func (l *live) Terminate(pid int) error {
	if pid <= 1 { // kill(2): 0 and less are groups of processes
		return fmt.Errorf("cannot end process %d: it is not a process of a program", pid)
	}
	err := syscall.Kill(pid, syscall.SIGTERM)
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("cannot end process %d: %w", pid, err)
	}
	return nil
}

func (l *live) Lock() (func(), error) {
	unlock, err := l.lock.take(lockFile)
	if err == nil {
		commands.SweepScratch(commands.ScratchParent)
	}
	return unlock, err
}

// CUDA is View's.
func (l *live) CUDA(ctx context.Context, of string, shown ...[]string) ([]host.CUDA, error) {
	return l.cuda.Ask(ctx, of, shown)
}

// CUDAWithin is CUDA, but does not wait longer than the limit for a process that does nothing.
func (l *live) CUDAWithin(
	ctx context.Context, limit time.Duration, of string, shown ...[]string,
) ([]host.CUDA, error) {
	return l.cuda.Within(limit).Ask(ctx, of, shown)
}

// ResetGPUs is Host's. All of them go in one call: GPUs joined by NVLink can only be reset
// together.
func (l *live) ResetGPUs(ctx context.Context, gpus ...string) error {
	return nvml.Reset(ctx, l.Do, gpus)
}

// AskAbout is View's.
func (l *live) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error) {
	dir, drop, err := commands.WriteScratch(commands.ScratchFolder(), "", files)
	if err != nil {
		return nil, host.Failed("make a scratch folder for", argv[0], err)
	}
	defer drop()
	return l.runner.Ask(ctx, commands.InScratch(argv, dir))
}

// AskWeb is View's.
func (l *live) AskWeb(w host.Web) (http.RoundTripper, error) {
	t, err := l.Transport(w)
	if err != nil {
		return nil, err
	}
	return host.OnlyLooks(t, w), nil
}

// DoWeb is Host's.
func (l *live) DoWeb(w host.Web) (http.RoundTripper, error) { return l.Transport(w) }

// callLimit is how long a daemon may take for an answer, whatever its caller allows.
const callLimit = 10 * time.Second

// Call is View's. A unary gRPC call is one HTTP/2 POST with a five-byte frame before the message
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md), which the standard library can
// do over a socket: google.golang.org/grpc would add 4.5 MiB to the binary.
func (l *live) Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	ctx, end := context.WithTimeoutCause(ctx, callLimit, host.OverLimit{Limit: callLimit})
	defer end()
	answer, err := web.Call(ctx, socket, method, request)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, host.Failed("call", socket, err)
	}
	return answer, nil
}
