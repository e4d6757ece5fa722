// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// bus is the connection to systemd, made when first needed and kept.
type bus struct {
	mu   sync.Mutex
	conn *dbus.Conn
	read *godbus.Conn // the message bus, for the properties that make a Unit
	off  bool         // the message bus did not answer
}

// connect returns the connection, a new one if it broke: systemd drops all of them when it is
// upgraded.
func (b *bus) connect() (*dbus.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		if b.conn.Connected() {
			return b.conn, nil
		}
		b.conn.Close()
		b.conn = nil
	}

	conn, err := connectIn(lookLimit, dial)
	if err != nil {
		return nil, fmt.Errorf("systemd does not answer on D-Bus: %w", err)
	}
	b.conn = conn

	return conn, nil
}

// close ends the connections.
func (b *bus) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil {
		b.conn.Close()
	}
	if b.read != nil {
		_ = b.read.Close()
	}
}

// connectIn makes a connection within a limit. The end of a connection's context ends the
// connection, so the caller's context is not used.
func connectIn[T any](limit time.Duration, dial func(context.Context) (T, error)) (conn T, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	late := time.AfterFunc(limit, cancel)
	conn, err = dial(ctx)
	if err == nil && !late.Stop() {
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
	}
	return conn, err
}

// dial takes root's private way to systemd first: it needs no message bus, which may be down or not
// yet up.
func dial(ctx context.Context) (*dbus.Conn, error) {
	if os.Geteuid() == 0 {
		if conn, err := dbus.NewSystemdConnectionContext(ctx); err == nil {
			return conn, nil
		}
	}
	return dialBus(ctx)
}

// dialBus takes the message bus, which reports the ends of jobs only to subscribers. After a
// restart of the message bus, systemd may take this client for subscribed because an earlier client
// had its name: https://github.com/systemd/systemd/issues/2735.
func dialBus(ctx context.Context) (*dbus.Conn, error) {
	conn, err := dbus.NewSystemConnectionContext(ctx)
	if err != nil {
		return nil, err
	}

	err = conn.Subscribe()
	if err != nil && errorName(err) != systemdName+".AlreadySubscribed" {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// errorName returns D-Bus's name of an error; "" if it is not an answer over D-Bus.
func errorName(err error) string {
	answer := godbus.Error{}
	errors.As(err, &answer)
	return answer.Name
}

// call makes a call, once more on a new connection if the old one turns out to be closed.
func (b *bus) call(do func(*dbus.Conn) error) error {
	for first := true; ; first = false {
		conn, err := b.connect()
		if err != nil {
			return err
		}
		err = do(conn)
		if !first || !errors.Is(err, godbus.ErrClosed) {
			return withNotExist(err)
		}
	}
}

// withNotExist adds fs.ErrNotExist to the error of a unit that does not exist.
func withNotExist(err error) error {
	switch errorName(err) {
	case systemdName + ".NoSuchUnit", "org.freedesktop.DBus.Error.FileNotFound":
		return fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	}
	return err
}

// properties asks for the properties that make a Unit; systemd loads the unit if it is not loaded.
func (b *bus) properties(ctx context.Context, name string) (p properties, err error) {
	if p, err := b.short(ctx, name); err == nil {
		return p, nil
	}
	return b.all(ctx, name)
}

// all asks for all properties.
func (b *bus) all(ctx context.Context, name string) (p properties, err error) {
	err = b.call(func(conn *dbus.Conn) error {
		p, err = conn.GetAllPropertiesContext(ctx, name)
		return err
	})
	return p, err
}

func (b *bus) reload(ctx context.Context) error {
	return b.call(func(conn *dbus.Conn) error { return conn.ReloadContext(ctx) })
}

func (b *bus) resetFailed(ctx context.Context, name string) error {
	return b.call(func(conn *dbus.Conn) error {
		return conn.ResetFailedUnitContext(ctx, name)
	})
}

// link changes a unit's links, for good, and returns which; then systemd reads all unit files
// again, as systemctl has it do.
func (b *bus) link(ctx context.Context, name, change string) (changed []string, err error) {
	names := []string{name}
	err = b.call(func(conn *dbus.Conn) (err error) {
		switch change {
		case "enable":
			hasInstall, made, err := conn.EnableUnitFilesContext(ctx, names, false, false)
			if err == nil && !hasInstall && len(made) == 0 {
				return errNoInstall
			}
			changed, err = filesOf(made, err)
			return err
		case "disable":
			changed, err = filesOf(conn.DisableUnitFilesContext(ctx, names, false))
		case "mask":
			changed, err = filesOf(conn.MaskUnitFilesContext(ctx, names, false, false))
		case "unmask":
			changed, err = filesOf(conn.UnmaskUnitFilesContext(ctx, names, false))
		default:
			err = errors.New("no such change")
		}
		return err
	})
	if err != nil {
		return nil, err
	}

	return changed, b.reload(ctx)
}

// filesOf returns the links that were changed; go-systemd has a type for each kind of change.
func filesOf[C ~struct{ Type, Filename, Destination string }](made []C, err error) (files []string, _ error) {
	for _, c := range made {
		files = append(files, dbus.EnableUnitFileChange(c).Filename)
	}
	return files, err
}

// job runs a job and returns how it ended: done, failed, dependency, timeout, canceled, skipped.
func (b *bus) job(ctx context.Context, name, job string) (string, error) {
	ended := make(chan string, 1)
	var conn *dbus.Conn
	err := b.call(func(c *dbus.Conn) (err error) {
		conn = c
		const replace = "replace" // as systemctl does: take the place of a job that waits
		switch job {
		case "start":
			_, err = c.StartUnitContext(ctx, name, replace, ended)
		case "stop":
			_, err = c.StopUnitContext(ctx, name, replace, ended)
		case "restart":
			_, err = c.RestartUnitContext(ctx, name, replace, ended)
		case "reload":
			_, err = c.ReloadUnitContext(ctx, name, replace, ended)
		default:
			err = errors.New("no such job")
		}

		return err
	})
	if err != nil {
		return "", err
	}

	return endOf(ctx, conn, ended)
}

// errClosed says that systemd closed the connection on which it would have said how a job ended.
var errClosed = errors.New("systemd closed the connection while the job ran")

// endOf waits for the end of a job, and returns how it ended.
func endOf(ctx context.Context, conn *dbus.Conn, ended <-chan string) (string, error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case result := <-ended:
			return result, nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-tick.C:
			if !conn.Connected() {
				return "", errClosed
			}
		}
	}
}

const systemdName = "org.freedesktop.systemd1"

// busLimit is how long the message bus has to answer. If it does not, it is not asked again.
const busLimit = time.Second

// short asks for the properties that make a Unit over the message bus: a unit has 300 properties,
// and over the private connection systemd builds all units for each client.
func (b *bus) short(ctx context.Context, name string) (properties, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, stop := context.WithTimeout(ctx, busLimit)
	defer stop()
	if err := b.connectRead(); err != nil {
		return nil, err
	}

	p := properties{}
	err := b.get(ctx, name, p, "Unit.LoadState", "Unit.ActiveState", "Unit.SubState")
	missing := p["LoadState"] == "not-found" && p["ActiveState"] == "inactive"
	if err != nil || missing { // the other properties of a missing unit say nothing
		return p, err
	}

	more := []string{
		"Unit.UnitFileState", "Unit.NeedDaemonReload",
		"Unit.FragmentPath", "Unit.DropInPaths",
		"Unit.ActiveEnterTimestamp", "Unit.ActiveEnterTimestampMonotonic",
	}
	isService := path.Ext(name) == ".service"
	failed := p["ActiveState"] == "failed" || p["ActiveState"] == "activating"
	if isService && failed {
		more = append(more, "Service.ExecStartPre")
	}
	if isService {
		more = append(more,
			"Service.MainPID", "Service.NRestarts",
			"Service.ExecMainStartTimestamp", "Service.ExecMainStartTimestampMonotonic",
		)
	}

	return p, b.get(ctx, name, p, more...)
}

// connectRead connects to the message bus, unless it has failed before.
func (b *bus) connectRead() error {
	if b.off {
		return godbus.ErrClosed
	}
	if b.read != nil && b.read.Connected() {
		return nil
	}

	conn, err := connectIn(busLimit, func(ctx context.Context) (*godbus.Conn, error) {
		return godbus.ConnectSystemBus(godbus.WithContext(ctx))
	})
	if err != nil {
		b.off = true
		return err
	}
	b.read = conn
	return nil
}

// get adds properties of a unit to p. Each is named by the last part of its interface, a dot, and
// its own name. All calls are sent before the first answer is awaited.
func (b *bus) get(ctx context.Context, unit string, p properties, names ...string) error {
	const method = "org.freedesktop.DBus.Properties.Get"
	path := godbus.ObjectPath("/org/freedesktop/systemd1/unit/" + dbus.PathBusEscape(unit))
	object := b.read.Object(systemdName, path)
	calls := map[string]*godbus.Call{}
	for _, name := range names {
		group, property, _ := strings.Cut(name, ".")
		done := make(chan *godbus.Call, 1)
		calls[property] = object.GoWithContext(ctx, method, 0, done, systemdName+"."+group, property)
	}

	for property, call := range calls {
		var v godbus.Variant
		if err := (<-call.Done).Store(&v); err != nil {
			b.off = errorName(err) == ""
			return err
		}
		p[property] = v.Value()
	}

	return nil
}
