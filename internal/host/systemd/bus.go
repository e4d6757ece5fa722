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
	"github.com/gpuadm/gpuadm/internal/host"
)

// bus is the connection to systemd, made when first needed and kept.
type bus struct {
	mu   sync.Mutex
	conn *dbus.Conn
	read *godbus.Conn // for what makes a Unit
	off  bool         // it did not answer
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

// connectIn makes a connection in a time. The context that a connection is made with ends it, so
// that it is not the caller's.
func connectIn[T any](limit time.Duration, dial func(context.Context) (T, error)) (conn T, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	late := time.AfterFunc(limit, cancel)
	if conn, err = dial(ctx); err == nil && !late.Stop() {
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
// restart of the message bus systemd may hold a client for subscribed that had this one's name
// before: https://github.com/systemd/systemd/issues/2735.
func dialBus(ctx context.Context) (*dbus.Conn, error) {
	conn, err := dbus.NewSystemConnectionContext(ctx)
	if err != nil {
		return nil, err
	}
	failed := godbus.Error{}
	if err := conn.Subscribe(); err != nil && !(errors.As(err, &failed) && failed.Name == systemdName+".AlreadySubscribed") {
		conn.Close()
		return nil, err
	}
	return conn, nil
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
			return plain(err)
		}
	}
}

// plain makes the error of a unit that is not there one of fs.ErrNotExist.
func plain(err error) error {
	if e := (godbus.Error{}); errors.As(err, &e) {
		switch e.Name {
		case "org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.DBus.Error.FileNotFound":
			return fmt.Errorf("%w: %w", err, fs.ErrNotExist)
		}
	}
	return err
}

// properties asks for what makes a Unit; systemd loads it if it is not loaded.
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

func (b *bus) resetFailed(ctx context.Context, name string) {
	// Its only error is that the unit is not loaded, which the job will say better.
	_ = b.call(func(conn *dbus.Conn) error { return conn.ResetFailedUnitContext(ctx, name) })
}

// link changes a unit's links, for good, and returns which; then systemd reads all unit files
// again, as systemctl has it do.
func (b *bus) link(ctx context.Context, name, change string) (changed []string, err error) {
	names := []string{name}
	err = b.call(func(conn *dbus.Conn) (err error) {
		switch change {
		case "enable":
			carries, made, err := conn.EnableUnitFilesContext(ctx, names, false, false)
			if err == nil && !carries && len(made) == 0 {
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

// filesOf are the links that were changed; go-systemd has a type for each kind of change.
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
	err := b.call(func(c *dbus.Conn) error {
		start := map[string]func(context.Context, string, string, chan<- string) (int, error){
			"start": c.StartUnitContext, "stop": c.StopUnitContext, "restart": c.RestartUnitContext, "reload": c.ReloadUnitContext,
		}[job]
		if start == nil {
			return errors.New("no such job")
		}
		conn = c
		_, err := start(ctx, name, "replace", ended) // as systemctl does: take the place of a job that waits
		return err
	})
	if err != nil {
		return "", err
	}
	pulse := time.NewTicker(time.Second)
	defer pulse.Stop()
	for {
		select {
		case result := <-ended:
			return result, nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-pulse.C:
			if !conn.Connected() {
				return "", errors.New("systemd closed the connection while the job ran")
			}
		}
	}
}

const systemdName = "org.freedesktop.systemd1"

// busLimit is how long the message bus has to answer. One that does not is not asked again.
const busLimit = time.Second

// short asks for what makes a Unit over the message bus: a unit has 300 properties, and systemd
// builds all that it has for each private connection.
func (b *bus) short(ctx context.Context, name string) (properties, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.off {
		return nil, godbus.ErrClosed
	}
	p := properties{}
	ctx, stop := context.WithTimeout(ctx, busLimit)
	defer stop()
	if b.read == nil || !b.read.Connected() {
		conn, err := connectIn(busLimit, func(ctx context.Context) (*godbus.Conn, error) {
			return godbus.ConnectSystemBus(godbus.WithContext(ctx))
		})
		if err != nil {
			b.off = true
			return nil, err
		}
		b.read = conn
	}
	unit := b.read.Object(systemdName, godbus.ObjectPath("/org/freedesktop/systemd1/unit/"+dbus.PathBusEscape(name)))
	ask := func(names ...string) error {
		calls := map[string]*godbus.Call{}
		for _, name := range names {
			face, property, _ := strings.Cut(name, ".")
			calls[property] = unit.GoWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, make(chan *godbus.Call, 1), systemdName+"."+face, property)
		}
		for property, call := range calls {
			var v godbus.Variant
			if err := (<-call.Done).Store(&v); err != nil {
				b.off = !errors.As(err, new(godbus.Error))
				return err
			}
			p[property] = v.Value()
		}
		return nil
	}
	if err := ask("Unit.LoadState", "Unit.ActiveState", "Unit.SubState"); err != nil || p["LoadState"] == "not-found" && p["ActiveState"] == "inactive" {
		return p, err // such a unit has no other property that says something
	}
	more := []string{"Unit.UnitFileState", "Unit.NeedDaemonReload", "Unit.FragmentPath", "Unit.DropInPaths", "Unit.ActiveEnterTimestamp", "Unit.ActiveEnterTimestampMonotonic"}
	if path.Ext(name) == ".service" {
		more = append(more, "Service.MainPID", "Service.NRestarts", "Service.ExecMainStartTimestamp", "Service.ExecMainStartTimestampMonotonic")
	}
	return p, ask(more...)
}

// Job is a command that the machine's systemd runs as a unit of its own. It outlives the process
// that asked for it: a pod's process stays in the pod's control group and dies with it, and a
// container engine that is restarted may take the pod along.
type Job struct {
	Unit   string   // "gpuadm-daemonset.service"
	About  string   // its description
	Argv   []string // absolute path first
	Output string   // file that standard output and error are added to; "" for the journal
}

// jobPoll is how often gpuadm checks a unit that another process has started.
const jobPoll = time.Second

// Run has systemd run the job, waits for its end, and returns its exit status. If the unit runs
// already, that is waited for. It is the systemd to which the /run/systemd of this process belongs.
func (j Job) Run(ctx context.Context) (status int, err error) {
	b := &bus{}
	defer b.close()
	result, err := b.transient(ctx, j)
	if err != nil {
		return 0, fmt.Errorf("cannot start unit %s: %w", j.Unit, err)
	}
	if result == "done" {
		return 0, nil
	}
	p, err := b.all(ctx, j.Unit)
	if err != nil {
		return 0, fmt.Errorf("cannot find out how unit %s ended: %w", j.Unit, err)
	}
	const exited = 1 // CLD_EXITED: waitid(2); else the status is a signal
	code, ok := p["ExecMainStatus"].(int32)
	if how, _ := p["ExecMainCode"].(int32); how != exited || !ok || code == 0 {
		return 0, fmt.Errorf("cannot finish unit %s: systemd says %s (%v)", j.Unit, result, p["Result"])
	}
	b.resetFailed(ctx, j.Unit)
	return int(code), nil
}

// transient starts the unit and waits for its end. It returns how: done, failed.
func (b *bus) transient(ctx context.Context, j Job) (string, error) {
	if running, err := b.properties(ctx, j.Unit); err == nil && running["ActiveState"] == "activating" {
		return b.ends(ctx, j.Unit)
	}
	b.resetFailed(ctx, j.Unit)
	props := []dbus.Property{
		dbus.PropDescription(j.About),
		dbus.PropType("oneshot"), // the start's job ends with the command
		// false: where the command fails, the unit fails. go-systemd names this argument as the
		// opposite of what it means to systemd.
		// Sources: https://github.com/coreos/go-systemd/issues/510; systemd,
		// src/core/dbus-execute.c, where true is EXEC_COMMAND_IGNORE_FAILURE; measured on systemd
		// 252.
		dbus.PropExecStart(j.Argv, false),
		{Name: "KillMode", Value: godbus.MakeVariant("process")}, // a package manager at work must not be killed in its midst
		{Name: "TimeoutStartUSec", Value: godbus.MakeVariant(^uint64(0))},
	}
	if j.Output != "" {
		for _, name := range []string{"StandardOutputFileToAppend", "StandardErrorFileToAppend"} {
			props = append(props, dbus.Property{Name: name, Value: godbus.MakeVariant(j.Output)})
		}
	}
	ended := make(chan string, 1)
	start := func(props []dbus.Property) error {
		return b.call(func(conn *dbus.Conn) error {
			_, err := conn.StartTransientUnitContext(ctx, j.Unit, "fail", props, ended)
			return err
		})
	}
	err := start(props)
	if e := (godbus.Error{}); errors.As(err, &e) && j.Output != "" && e.Name != "org.freedesktop.systemd1.UnitExists" {
		err = start(props[:len(props)-2]) // systemd 239, of RHEL 8, cannot append to a file: the journal has it then
	}
	if err != nil {
		return "", err
	}
	select {
	case result := <-ended:
		return result, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// ends waits for the end of a unit that runs.
func (b *bus) ends(ctx context.Context, unit string) (string, error) {
	for {
		p, err := b.properties(ctx, unit)
		switch {
		case err != nil:
			return "", err
		case p["ActiveState"] == "failed":
			return "failed", nil
		case p["ActiveState"] != "activating":
			return "done", nil
		}
		if host.Pause(ctx, jobPoll) != nil {
			return "", context.Cause(ctx)
		}
	}
}
