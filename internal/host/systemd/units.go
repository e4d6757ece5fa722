// SPDX-License-Identifier: Apache-2.0

// Package systemd asks systemd about units and changes them over D-Bus, and knows what their files
// say where no systemd runs.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"golang.org/x/sys/unix"
)

// Time limits for systemd: a look is quick, a change of links reloads all unit files, a job may
// pull in many units.
const (
	lookLimit = 30 * time.Second
	linkLimit = 2 * time.Minute
	jobLimit  = 10 * time.Minute
)

// Manager is the running machine's service manager, asked over D-Bus. Where none runs, it goes by
// the unit files alone.
type Manager struct {
	files *files.Files
	bus   bus
}

// New is the service manager of the machine with these files.
func New(files *files.Files) *Manager { return &Manager{files: files} }

// runs says whether systemd is the machine's init: sd_booted(3).
func (s *Manager) runs() (bool, error) {
	i, err := s.files.Lstat("/run/systemd/system")
	if notThere(err) {
		return false, nil
	}
	return i.Mode.IsDir(), err
}

// errNotRunning says that an answer holds once the machine has booted.
var errNotRunning = host.Later{Until: "once systemd runs here"}

func (s *Manager) read(ctx context.Context, name string) (host.Unit, error) {
	runs, err := s.runs()
	if err != nil {
		return host.Unit{}, &host.UnitError{Verb: "check", Unit: name, Cause: err}
	}
	if !runs {
		found, err := s.unitFiles(ctx).read(name)
		if err == nil {
			err = errNotRunning
		}
		return found.Unit, err
	}

	ctx, stop := context.WithTimeout(ctx, lookLimit)
	defer stop()
	u, err := s.look(ctx, name)
	if err == nil {
		u.Uptime, err = uptime()
	}
	if err != nil {
		return u, &host.UnitError{Verb: "check", Unit: name, Cause: err}
	}

	return u, nil
}

// look asks systemd for a unit, and the files for what systemd does not know yet: its own
// NeedDaemonReload is blind to a first drop-in in a new folder and to a file that hides the unit's
// (seen with 252; it looks in the folders it saw at its last reload: unit_file_find_dirs). A
// restart then goes without them, though the process is younger than all files.
func (s *Manager) look(ctx context.Context, name string) (host.Unit, error) {
	found, err := s.unitFiles(ctx).list(name)
	if err != nil {
		return host.Unit{}, err
	}

	p, err := s.bus.properties(ctx, name)
	if err != nil {
		return host.Unit{}, err
	}

	u := p.unit()
	for i, file := range u.Files {
		if real, err := s.files.Resolve(file); err == nil {
			u.Files[i] = real // /lib and /usr/lib are one on most machines
		}
	}

	for i, file := range found.Files {
		if !slices.Contains(u.Files, file) {
			u.Outdated = true
			u.Files = slices.Insert(u.Files, min(i, len(u.Files)), file)
		}
	}

	return u, nil
}

// uptime is the clock of systemd's Monotonic timestamps: it does not advance while the machine
// sleeps.
func uptime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, err
	}
	return time.Duration(ts.Nano()), nil
}

// properties are a unit's D-Bus properties: org.freedesktop.systemd1(5).
type properties map[string]any

func get[T any](p properties, key string) T {
	v, _ := p[key].(T)
	return v
}

func (p properties) unit() host.Unit {
	u := host.Unit{
		Load:     get[string](p, "LoadState"),
		Enabled:  get[string](p, "UnitFileState"),
		Active:   get[string](p, "ActiveState"),
		Sub:      get[string](p, "SubState"),
		PID:      int(get[uint32](p, "MainPID")),
		Ended:    int(get[uint32](p, "NRestarts")),
		Outdated: get[bool](p, "NeedDaemonReload"),
	}
	if file := get[string](p, "FragmentPath"); file != "" && u.Load != "masked" {
		u.Files = append(u.Files, file)
	}
	u.Files = append(u.Files, get[[]string](p, "DropInPaths")...)
	u.Refused = refused(get[[][]any](p, "ExecStartPre"))
	if u.PID != 0 || u.Active == "active" || u.Active == "reloading" {
		// A unit without a main process (a socket, a oneshot that remains) counts from when it did
		// what it does.
		for _, at := range []string{"ExecMainStartTimestamp", "ActiveEnterTimestamp"} {
			if wall := get[uint64](p, at); wall != 0 {
				u.Started = time.UnixMicro(int64(wall))
				u.Since = time.Duration(get[uint64](p, at+"Monotonic")) * time.Microsecond
				break
			}
		}
	}

	return u
}

// refused returns the first of a unit's commands that has ended with an error. Of each systemd says
// its path, argv, whether its failure is ignored, four times, the process, and the code and the
// status with which it ended: org.freedesktop.systemd1(5), ExecStartPre; and
// bus_exec_context_exec_command in systemd's src/core/dbus-execute.c, a(sasbttttuii).
func refused(commands [][]any) []string {
	for _, command := range commands {
		if len(command) != 10 {
			continue
		}
		argv, _ := command[1].([]string)
		ignored, _ := command[2].(bool)
		status, _ := command[9].(int32)
		if status != 0 && !ignored {
			return argv
		}
	}
	return nil
}

func (s *Manager) Set(ctx context.Context, name string, to host.UnitChange) error {
	if to.File != "" {
		if err := s.link(ctx, name, to.File); err != nil {
			return err
		}
	}

	if to.Job != "" {
		if err := s.job(ctx, name, to.Job); err != nil {
			return &host.UnitError{Verb: to.Job, Unit: name, Cause: err}
		}
	}

	return nil
}

// link enables, disables, masks or unmasks a unit. Where systemd does not run it is done by hand,
// as systemctl does in a chroot.
func (s *Manager) link(ctx context.Context, name, change string) error {
	runs, err := s.runs()
	if err != nil {
		return &host.UnitError{Verb: change, Unit: name, Cause: err}
	}
	if !runs {
		return unitsOf(s.files, s.files.ReadDir).set(name, change)
	}

	ctx, stop := context.WithTimeout(ctx, linkLimit)
	defer stop()
	if change == "read" {
		return s.bus.reload(ctx)
	}

	changed, err := s.bus.link(ctx, name, change)
	if err == nil {
		err = s.sync(changed)
	}
	if err != nil {
		return &host.UnitError{Verb: change, Unit: name, Cause: err}
	}

	return nil
}

// sync makes durable what systemd linked and unlinked: it does not do so itself.
func (s *Manager) sync(changed []string) error {
	var folders []string
	for _, file := range changed {
		// The folder above too: a .wants folder comes with its first link and goes with its last.
		folders = append(folders, path.Dir(file), path.Dir(path.Dir(file)))
	}

	slices.Sort(folders)
	for _, folder := range slices.Compact(folders) {
		if err := s.files.SyncFolder(folder); err != nil {
			return err
		}
	}

	return nil
}

// job starts, stops, restarts or reloads a unit and waits for the end of it. systemd reads changed
// unit files first.
func (s *Manager) job(ctx context.Context, name, job string) error {
	runs, err := s.runs()
	if err != nil {
		return err
	}
	if !runs {
		return errNotRunning
	}

	late := fmt.Errorf("not done within %v: %w", jobLimit, context.DeadlineExceeded)
	ctx, stop := context.WithTimeoutCause(ctx, jobLimit, late)
	defer stop()

	if job == "reset-failed" {
		return s.bus.resetFailed(ctx, name)
	}
	before, err := s.look(ctx, name)
	if err == nil && (before.Outdated || before.Load != "loaded") {
		err = s.bus.reload(ctx)
	}
	if err != nil {
		return err
	}

	if job == "start" || job == "restart" {
		// Else a unit that failed often, or that a run restarted often, does not start though its
		// cause is fixed: StartLimitBurst in systemd.unit(5).
		_ = s.bus.resetFailed(ctx, name) // if the unit is not loaded, the job will say so better
	}

	result, err := s.jobOrReload(ctx, name, job)
	if err != nil {
		return err
	}
	after, err := s.bus.all(ctx, name)
	if err != nil {
		return err
	}
	return outcome(name, job, result, after)
}

// jobOrReload runs a job, and runs it again after a reload if systemd refuses it: the file of a
// unit that this unit needs may have changed as well ("failed to load properly, please reload").
func (s *Manager) jobOrReload(ctx context.Context, name, job string) (result string, err error) {
	result, err = s.bus.job(ctx, name, job)
	if err == nil || ctx.Err() != nil || errors.Is(err, fs.ErrNotExist) {
		return result, err
	}
	err = s.bus.reload(ctx)
	if err != nil {
		return "", err
	}
	return s.bus.job(ctx, name, job)
}

// outcome says whether a unit is as the job should have left it. The end of the job is not enough:
// a daemon may start and end at once.
func outcome(name, job, result string, after properties) error {
	see := "journalctl -u " + name + " says why"
	if why := get[string](after, "Result"); why != "" && why != "success" {
		see = "its result is " + why + ", " + see
	}

	switch {
	case result == "dependency":
		return errors.New("a unit it needs did not start; systemctl list-dependencies " + name)
	case result == "canceled":
		return errors.New("another job took its place")
	case result != "done" && result != "skipped":
		return fmt.Errorf("the job ended as %s; %s", result, see)
	case job == "stop":
		return nil
	case after.died():
		return fmt.Errorf("it started and died; %s", see)
	case after.conditionFailed():
		return errors.New("a condition in its unit file does not hold; systemctl status " + name + " says which")
	}

	return nil
}

// died reports whether the unit's process has ended with an error.
func (p properties) died() bool {
	if get[string](p, "ActiveState") == "failed" {
		return true
	}
	switch get[string](p, "SubState") {
	case "auto-restart", "auto-restart-queued":
		return true
	}

	return false
}

// conditionFailed reports whether a condition in the unit's file kept it from starting. systemd
// unloads a unit that has ended and to which no other refers, with its conditions: their time is
// then 0.
func (p properties) conditionFailed() bool {
	inactive := get[string](p, "ActiveState") == "inactive"
	checked := get[uint64](p, "ConditionTimestamp") != 0
	return inactive && checked && !get[bool](p, "ConditionResult")
}

// Moment is what systemd and its folders answered to one snapshot.
type Moment struct {
	folders func(*files.Files) []listedFolder
	units   sync.Map // by name: func() (Unit, error)
}

type momentKey struct{}

// In returns a context in which Unit answers from the moment.
func (m *Moment) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, momentKey{}, m)
}

func NewMoment(list func(folder string) ([]string, error)) *Moment {
	var once sync.Once
	var found []listedFolder
	return &Moment{folders: func(f *files.Files) []listedFolder {
		once.Do(func() { found = unitsOf(f, list).folders })
		return found
	}}
}

// unitFiles returns the machine's unit files; a snapshot lists their folders once.
func (s *Manager) unitFiles(ctx context.Context) unitFiles {
	if m, ok := ctx.Value(momentKey{}).(*Moment); ok {
		return unitFiles{Files: s.files, folders: m.folders(s.files)}
	}
	return unitsOf(s.files, s.files.ReadDir)
}

// Unit describes a unit, as systemd says now, or has said to the same snapshot.
func (s *Manager) Unit(ctx context.Context, name string) (host.Unit, error) {
	m, ok := ctx.Value(momentKey{}).(*Moment)
	if !ok {
		return s.read(ctx, name)
	}
	read := sync.OnceValues(func() (host.Unit, error) { return s.read(ctx, name) })
	first, _ := m.units.LoadOrStore(name, read)
	u, err := first.(func() (host.Unit, error))()
	u.Files = slices.Clone(u.Files)
	return u, err
}
