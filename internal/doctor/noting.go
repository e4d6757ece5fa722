// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// allUnits is the part that a report names where systemd does not answer.
const allUnits = "units of systemd"

// noting is the View of all checks. It notes what could not be looked at, so a check may take a
// failed look for a missing thing: the report then ends as unknown, and not as healthy.
type noting struct {
	host.View
	m *Machine
}

// file notes a file that could not be looked at.
func (n noting) file(name string, err error) {
	if err != nil && !isAnswer(err) {
		n.m.blind(name, err)
	}
}

// isAnswer reports whether an error says what is on the machine: there is no such file, process or
// device, or it is of another kind. errno(3).
func isAnswer(err error) bool {
	answers := []error{
		fs.ErrNotExist, fs.ErrInvalid, io.EOF, io.ErrUnexpectedEOF,
		syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG,
		syscall.ESRCH, syscall.ENODEV, syscall.ENXIO, syscall.EINVAL, syscall.EOPNOTSUPP,
	}
	for _, answer := range answers {
		if errors.Is(err, answer) {
			return true
		}
	}

	return errors.As(err, new(host.Later))
}

func (n noting) ReadFile(name string) ([]byte, error) {
	data, err := n.View.ReadFile(name)
	n.file(name, err)
	return data, err
}

func (n noting) ReadAt(name string, p []byte, off int64) (int, error) {
	read, err := n.View.ReadAt(name, p, off)
	n.file(name, err)
	return read, err
}

func (n noting) Stat(name string) (host.Info, error) {
	info, err := n.View.Stat(name)
	n.file(name, err)
	return info, err
}

func (n noting) Lstat(name string) (host.Info, error) {
	info, err := n.View.Lstat(name)
	n.file(name, err)
	return info, err
}

func (n noting) Readlink(name string) (string, error) {
	to, err := n.View.Readlink(name)
	n.file(name, err)
	return to, err
}

func (n noting) ReadDir(name string) ([]string, error) {
	names, err := n.View.ReadDir(name)
	n.file(name, err)
	return names, err
}

func (n noting) Resolve(name string) (string, error) {
	to, err := n.View.Resolve(name)
	n.file(name, err)
	return to, err
}

func (n noting) Room(name string) (host.Room, error) {
	room, err := n.View.Room(name)
	n.file(name, err)
	return room, err
}

func (n noting) OpenDevices(pid int) ([]host.Device, error) {
	open, err := n.View.OpenDevices(pid)
	n.file(fmt.Sprintf("/proc/%d/fd", pid), err)
	return open, err
}

func (n noting) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	out, err := n.View.Ask(ctx, argv...)
	n.command(argv, err)
	return out, err
}

func (n noting) AskWith(ctx context.Context, env []string, argv ...string) ([]byte, error) {
	out, err := n.View.AskWith(ctx, env, argv...)
	n.command(argv, err)
	return out, err
}

func (n noting) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error) {
	out, err := n.View.AskAbout(ctx, files, argv...)
	n.command(argv, err)
	return out, err
}

// Call notes a daemon that does not answer, also one whose socket is there and that does not
// listen: where no fault was found that explains it, what the daemon says was not looked at.
func (n noting) Call(ctx context.Context, socket, method string, request []byte) ([]byte, error) {
	answer, err := n.View.Call(ctx, socket, method, request)
	refused := errors.As(err, new(*host.CallError))
	if err != nil && !refused && !isAnswer(err) {
		n.m.daemonSilent(socket, err)
	}
	return answer, err
}

func (n noting) Unit(ctx context.Context, name string) (host.Unit, error) {
	unit, err := n.View.Unit(ctx, name)
	if err != nil && !isAnswer(err) {
		n.m.blind(allUnits, err)
	}
	return unit, err
}

// command notes a program that did not end. A missing program, and a program's exit status, are
// answers.
func (n noting) command(argv []string, err error) {
	var failed *host.CommandError
	if !errors.As(err, &failed) || failed.Code >= 0 || isAnswer(err) {
		return
	}
	n.m.blind("the answer of "+path.Base(argv[0]), failed.Cause)
}

// isOfProcess matches the files of one process.
var isOfProcess = pattern.Of(`^/proc/[0-9]+/`)

// blind notes a file, or what else a check asked, that could not be looked at. The files of
// processes are one part: hundreds of them have one cause.
func (m *Machine) blind(what string, err error) {
	if isOfProcess().MatchString(what) {
		what = "files of processes"
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	keepFirst(&m.unseen, what, err)
}

// daemonSilent notes a daemon's socket on which no answer came.
func (m *Machine) daemonSilent(socket string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	keepFirst(&m.silent, socket, err)
}

func keepFirst(all *map[string]error, what string, err error) {
	if *all == nil {
		*all = map[string]error{}
	}
	if (*all)[what] == nil {
		(*all)[what] = err
	}
}

// silentDaemons notes the daemons that did not answer as not looked at.
func (m *Machine) silentDaemons() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for socket, err := range m.silent {
		keepFirst(&m.unseen, socket, err)
	}
}

// names reports whether a part that could not be read says already that this was the cause.
func (u Unread) names(what string) bool {
	return u.What == what || strings.Contains(u.Why, what)
}
