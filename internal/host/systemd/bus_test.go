// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	godbus "github.com/godbus/dbus/v5"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// manager is systemd on a message bus of the test's own.
type manager struct {
	asked  atomic.Int32
	silent chan struct{} // not nil: it answers once this is closed
	load   string        // the unit's state
	jobs   chan string   // not nil: receives the name of each transient unit that is started
}

// StartTransientUnit starts a job that never ends.
func (m *manager) StartTransientUnit(unit, _ string, _, _ []any) (godbus.ObjectPath, *godbus.Error) {
	m.jobs <- unit
	return "/org/freedesktop/systemd1/job/1", nil
}

// Subscribe answers as systemd does to a client that has the name of one from before a restart of
// the message bus.
func (*manager) Subscribe() *godbus.Error {
	return godbus.NewError(systemdName+".AlreadySubscribed", []any{"Client is already subscribed."})
}

func (m *manager) Get(face, property string) (godbus.Variant, *godbus.Error) {
	m.asked.Add(1)
	if m.silent != nil {
		<-m.silent
	}
	value, ok := map[string]any{
		"Unit.LoadState": cmp.Or(m.load, "loaded"), "Unit.UnitFileState": "enabled", "Unit.NeedDaemonReload": true, "Unit.FragmentPath": "/etc/x.service",
		"Unit.DropInPaths": []string{"/etc/x.service.d/a.conf"}, "Unit.ActiveState": map[bool]string{
			true:  "inactive",
			false: "active",
		}[m.load == "not-found"], "Unit.SubState": "running",
		"Unit.ActiveEnterTimestamp": uint64(1), "Unit.ActiveEnterTimestampMonotonic": uint64(2),
		"Service.MainPID": uint32(7), "Service.NRestarts": uint32(3), "Service.ExecMainStartTimestamp": uint64(3_000_000), "Service.ExecMainStartTimestampMonotonic": uint64(4),
	}[strings.TrimPrefix(face, systemdName+".")+"."+property]
	if !ok {
		return godbus.Variant{}, godbus.MakeFailedError(fmt.Errorf("no property %s", property))
	}
	return godbus.MakeVariant(value), nil
}

// startBus starts a message bus, and on it systemd with one unit.
func startBus(t *testing.T, m *manager) {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		const why = "cannot start a message bus: dbus-daemon is missing; apt-get install dbus"
		must.That(t, os.Getenv("CI") != "true", "%v", why)
		t.Skip(why)
	}

	dir := t.TempDir()
	config := filepath.Join(dir, "bus.conf")
	text := `<busconfig><listen>unix:dir=` + dir + `</listen><auth>EXTERNAL</auth><policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`
	must.OK(t, os.WriteFile(config, []byte(text), 0o644))
	daemon := exec.Command("dbus-daemon", "--nofork", "--print-address", "--config-file="+config)
	out, err := daemon.StdoutPipe()
	must.OK(t, err)
	must.OK(t, daemon.Start())
	t.Cleanup(func() { _ = daemon.Process.Kill(); _ = daemon.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	must.OK(t, err)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", strings.TrimSpace(address))
	conn, err := godbus.ConnectSystemBus()
	must.OK(t, err)
	t.Cleanup(func() { conn.Close() })
	for path, face := range map[godbus.ObjectPath]string{
		"/org/freedesktop/systemd1": systemdName + ".Manager", "/org/freedesktop/systemd1/unit/x_2eservice": "org.freedesktop.DBus.Properties",
	} {
		must.OK(t, conn.Export(m, path, face))
	}

	_, err = conn.RequestName(systemdName, 0)
	must.That(t, err == nil, "%v", err)
}

// TestBusSubscribed: a client that systemd holds for subscribed already is connected all the same.
func TestBusSubscribed(t *testing.T) {
	startBus(t, &manager{})
	conn, err := connectIn(lookLimit, dialBus)
	must.OK(t, err)
	conn.Close()
}

// TestBusLook: a look asks for what makes a Unit and for no more.
func TestBusLook(t *testing.T) {
	m := &manager{}
	startBus(t, m)
	var b bus
	p, err := b.short(t.Context(), "x.service")
	must.OK(t, err)
	u := p.unit()
	if u.Load != "loaded" || u.Enabled != "enabled" || u.Active != "active" || u.Sub != "running" || u.PID != 7 || u.Ended != 3 || !u.Outdated || u.Since != 4000 ||
		u.Started.Unix() != 3 || strings.Join(u.Files, " ") != "/etc/x.service /etc/x.service.d/a.conf" || m.asked.Load() != 13 {
		t.Errorf("%+v, by %d questions", u, m.asked.Load())
	}
	_, err = b.short(t.Context(), "y.service")
	check.That(t, err != nil && !b.off, "a unit that cannot be asked about: %v, and the bus is off: %t", err, b.off)
}

// TestBusNotFound: of a unit that is neither there nor runs there is no more to ask.
func TestBusNotFound(t *testing.T) {
	m := &manager{load: "not-found"}
	startBus(t, m)
	p, err := new(bus).short(t.Context(), "x.service")
	check.That(t, err == nil && p.unit().Load == "not-found" && m.asked.Load() == 3, "%+v, %v, by %d questions", p, err, m.asked.Load())
}

// TestRunGoesOnWithoutTheConnection: systemd closes all connections when it is upgraded, and the
// unit that it runs for a pod continues.
func TestRunGoesOnWithoutTheConnection(t *testing.T) {
	m := &manager{jobs: make(chan string, 1)}
	startBus(t, m)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second) // else the test would hang
	defer stop()

	b := &bus{}
	t.Cleanup(b.close)
	go func() {
		<-m.jobs
		conn, err := b.connect()
		check.OK(t, err)
		// This call begins only after the answer to the start.
		_, _ = conn.StopUnitContext(ctx, "y.service", "fail", make(chan string))
		conn.Close()
	}()
	result, err := b.transient(ctx, Job{Unit: "x.service", Argv: []string{"/bin/true"}})
	check.That(t, err == nil && result == "done", "%q, %v", result, err)
}

// TestBusSilent: a bus on which systemd does not answer is not asked a second time, and neither is
// one that is not there.
func TestBusSilent(t *testing.T) {
	m := &manager{silent: make(chan struct{})}
	startBus(t, m)
	t.Cleanup(func() { close(m.silent) })
	for _, address := range []string{os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"), "unix:path=" + filepath.Join(t.TempDir(), "none")} {
		t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
		var b bus
		_, err := b.short(t.Context(), "x.service")
		asked := m.asked.Load()
		_, again := b.short(t.Context(), "x.service")
		check.That(t, err != nil && again != nil && b.off && m.asked.Load() == asked, "%v, then %v after %d questions more", err, again, m.asked.Load()-asked)
	}
}
