// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

const systemdName = "org.freedesktop.systemd1"

// busLimit is how long the message bus has to answer. One that does not is not asked again.
const busLimit = time.Second

// short asks for what makes a Unit over the message bus: a unit has 300 properties, and systemd builds all that it has for each private connection.
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
	of := map[string][]string{"Unit": {"LoadState", "UnitFileState", "NeedDaemonReload", "FragmentPath", "DropInPaths", "ActiveState", "SubState", "ActiveEnterTimestamp", "ActiveEnterTimestampMonotonic"}}
	if path.Ext(name) == ".service" {
		of["Service"] = []string{"MainPID", "ExecMainStartTimestamp", "ExecMainStartTimestampMonotonic"}
	}
	unit := b.read.Object(systemdName, godbus.ObjectPath("/org/freedesktop/systemd1/unit/"+dbus.PathBusEscape(name)))
	calls := map[string]*godbus.Call{}
	for _, face := range []string{"Service", "Unit"} {
		for _, property := range of[face] {
			calls[property] = unit.GoWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, make(chan *godbus.Call, 1), systemdName+"."+face, property)
		}
	}
	for property, call := range calls {
		var v godbus.Variant
		if err := (<-call.Done).Store(&v); err != nil {
			b.off = !errors.As(err, new(godbus.Error))
			return nil, err
		}
		p[property] = v.Value()
	}
	return p, nil
}
