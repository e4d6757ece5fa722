// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// busSocket is the system's message bus: ListenStream in dbus.socket of dbus and of dbus-broker, and DEFAULT_SYSTEM_BUS_ADDRESS in systemd's
// src/libsystemd/sd-bus/bus-internal.h.
const busSocket = "/run/dbus/system_bus_socket"

// busLimit is how long the message bus may take to answer. At boot the daemon of a bus that is connected to may not have started yet.
const busLimit = time.Second

const (
	systemdName    = "org.freedesktop.systemd1"
	systemdUnit    = systemdName + ".Unit"
	systemdService = systemdName + ".Service"
	noSuchUnit     = systemdName + ".NoSuchUnit"
)

// wanted are the properties that make a Unit, of all units and of services: org.freedesktop.systemd1(5). A unit has 300 of them, and
// to make, send and read all took a third of the processor time of an apply with nothing to do. The state comes last: of a unit that
// changes meanwhile it is what the process that was found has become.
func wanted(name string) (all [][2]string) {
	if path.Ext(name) == ".service" {
		all = [][2]string{{systemdService, "MainPID"}, {systemdService, "ExecMainStartTimestamp"}, {systemdService, "ExecMainStartTimestampMonotonic"}}
	} else {
		all = entered()
	}
	return append(all, [][2]string{
		{systemdUnit, "LoadState"},
		{systemdUnit, "UnitFileState"},
		{systemdUnit, "NeedDaemonReload"},
		{systemdUnit, "FragmentPath"},
		{systemdUnit, "DropInPaths"},
		{systemdUnit, "ActiveState"},
		{systemdUnit, "SubState"},
	}...)
}

// entered say when a unit did last what it does. A service that has started a main process counts from that.
func entered() [][2]string {
	return [][2]string{{systemdUnit, "ActiveEnterTimestamp"}, {systemdUnit, "ActiveEnterTimestampMonotonic"}}
}

// messageBus is the connection to the system's message bus for the questions that make a Unit. It is kept: the bus sends hardly more on it
// than answers.
//
// Root has a private way to systemd too, which go-systemd and systemctl take. But for each connection there systemd first builds all
// that it can answer with, which takes it 2 ms, as long as 40 answers take (bus_on_connection and bus_setup_api in systemd's
// src/core/dbus.c; measured with 257). So that is the way where the bus does not answer.
type messageBus struct {
	mu   sync.Mutex
	conn *busConn // nil if there is none
	off  bool     // it did not answer, and is not asked again
}

// errBusOff says that the message bus did not answer an earlier question.
var errBusOff = errors.New("the message bus does not answer")

// properties asks systemd for what makes a Unit.
func (b *messageBus) properties(ctx context.Context, socket, name string) (properties, error) {
	found := properties{}
	err := b.get(ctx, socket, name, wanted(name), found)
	if err == nil && found.mainless() {
		err = b.get(ctx, socket, name, entered(), found)
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// fit says whether the properties that are there are of their types.
func (p properties) fit() error {
	for name, v := range p {
		ok := false
		switch name {
		case "MainPID":
			_, ok = v.(uint32)
		case "NeedDaemonReload":
			_, ok = v.(bool)
		case "DropInPaths":
			_, ok = v.([]string)
		case "LoadState", "UnitFileState", "FragmentPath", "ActiveState", "SubState":
			_, ok = v.(string)
		default: // times, in microseconds
			_, ok = v.(uint64)
		}
		if !ok {
			return errMessage
		}
	}
	return nil
}

// mainless says that a service is active without a main process: one that forks, and systemd has found none.
func (p properties) mainless() bool {
	start, is := p["ExecMainStartTimestamp"]
	return is && start == uint64(0) && p["ActiveState"] != "inactive"
}

// get adds properties to those found.
func (b *messageBus) get(ctx context.Context, socket, name string, all [][2]string, found properties) error {
	calls := make([]methodCall, len(all))
	for i, of := range all {
		at := "/org/freedesktop/systemd1/unit/" + dbus.PathBusEscape(name)
		calls[i] = methodCall{systemdName, at, "org.freedesktop.DBus.Properties", "Get", []string{of[0], of[1]}}
	}
	answers, err := b.ask(ctx, socket, calls)
	if err != nil {
		return err
	}
	for i, of := range all {
		found[of[1]] = answers[i]
	}
	return found.fit()
}

// unknown says that systemd does not know a unit. GetUnit does not make systemd load it: for a unit without a file that means a search of
// all folders, and two signals to all that listen (bus_get_unit_by_name in systemd's src/core/dbus-manager.c, manager_dispatch_gc_unit_queue in
// src/core/manager.c).
func (b *messageBus) unknown(ctx context.Context, socket, name string) bool {
	_, err := b.ask(ctx, socket, []methodCall{{systemdName, "/org/freedesktop/systemd1", systemdName + ".Manager", "GetUnit", []string{name}}})
	var refused godbus.Error
	return errors.As(err, &refused) && refused.Name == noSuchUnit
}

// prepare connects for the questions that will come: the bus works on it meanwhile.
func (b *messageBus) prepare(socket string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, stop := context.WithTimeout(context.Background(), busLimit)
	defer stop()
	b.conn, _ = dialBus(ctx, socket) // a question tries again, and says why it fails
}

// ask makes calls. A connection that was kept may have ended meanwhile, with the daemon of the bus.
func (b *messageBus) ask(ctx context.Context, socket string, calls []methodCall) ([]any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.off {
		return nil, errBusOff
	}
	limited, stop := context.WithTimeout(ctx, busLimit)
	defer stop()
	answers, refused, err := b.over(limited, calls)
	if err != nil && limited.Err() == nil {
		if b.conn, err = dialBus(limited, socket); err == nil {
			answers, refused, err = b.over(limited, calls)
		}
	}
	if err != nil {
		b.off = ctx.Err() == nil
		return nil, errors.Join(err, ctx.Err())
	}
	return answers, refused
}

// over makes calls over the connection, and ends it if they are not all answered.
func (b *messageBus) over(ctx context.Context, calls []methodCall) (answers []any, refused, err error) {
	if b.conn == nil {
		return nil, nil, net.ErrClosed
	}
	conn := b.conn
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	answers, refused, err = conn.ask(calls)
	if !stop() || err != nil {
		conn.Close()
		b.conn = nil
		return nil, nil, errors.Join(err, ctx.Err())
	}
	return answers, refused, nil
}

// busConn is a connection to the message bus.
type busConn struct {
	net.Conn
	in     *bufio.Reader
	serial uint32 // of the last call; 0 before the bus has said that it knows who asks
}

// dialBus connects, and authenticates with one write as sd-bus does (bus_socket_start_auth_client in systemd's
// src/libsystemd/sd-bus/bus-socket.c). The first call reads what the bus says to that.
func dialBus(ctx context.Context, socket string) (*busConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	user := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
	if _, err := conn.Write([]byte("\x00AUTH EXTERNAL " + user + "\r\nBEGIN\r\n")); err != nil {
		conn.Close()
		return nil, err
	}
	return &busConn{Conn: conn, in: bufio.NewReader(conn)}, nil
}

// ask makes calls with one write. The answers are in the order of the calls; refused is the first that is an error.
func (c *busConn) ask(calls []methodCall) (answers []any, refused, err error) {
	var out []byte
	if c.serial == 0 {
		if line, err := c.in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "OK ") {
			return nil, nil, errors.Join(errors.New("the message bus refuses the connection"), err)
		}
		c.serial++ // the first call on a bus: "org.freedesktop.DBus.Hello" in the D-Bus specification
		out = methodCall{"org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello", nil}.append(out, c.serial)
	}
	first := c.serial + 1
	for _, call := range calls {
		c.serial++
		out = call.append(out, c.serial)
	}
	if _, err := c.Write(out); err != nil {
		return nil, nil, err
	}
	answers = make([]any, len(calls))
	var answered []uint32
	for len(answered) < len(calls) {
		m, err := readMessage(c.in)
		if err != nil {
			return nil, nil, err
		}
		// Signals come too, and on some buses any user may send one with the number of a call.
		if m.kind != busReply && m.kind != busError || m.answers < first || m.answers > c.serial {
			continue
		}
		if slices.Contains(answered, m.answers) || m.kind == busReply && m.value == nil {
			return nil, nil, errMessage
		}
		answered = append(answered, m.answers)
		if m.kind == busError && refused == nil {
			refused = godbus.Error{Name: m.refusal}
		}
		answers[m.answers-first] = m.value
	}
	return answers, refused, nil
}

// methodCall is a call to a program on the bus.
type methodCall struct {
	to, path, of, method string
	args                 []string
}

// append writes the call behind other messages. Source: "Message Format" in https://dbus.freedesktop.org/doc/dbus-specification.html.
// Godbus could, too, and takes a twentieth of the time of an apply with nothing to do for eleven calls.
func (c methodCall) append(out []byte, serial uint32) []byte {
	start := len(out)
	align := func(n int) {
		for (len(out)-start)%n != 0 {
			out = append(out, 0)
		}
	}
	number := func(n uint32) {
		align(4)
		out = binary.LittleEndian.AppendUint32(out, n)
	}
	text := func(s string) {
		number(uint32(len(s)))
		out = append(append(out, s...), 0)
	}
	const call, version = 1, 1
	out = append(out, 'l', call, 0, version, 0, 0, 0, 0)
	number(serial)
	number(0)
	fields := len(out)
	for _, f := range [...]struct {
		code  byte
		of    byte
		value string
	}{{fieldPath, 'o', c.path}, {fieldDestination, 's', c.to}, {fieldInterface, 's', c.of}, {fieldMember, 's', c.method}} {
		align(8)
		out = append(out, f.code, 1, f.of, 0)
		text(f.value)
	}
	if len(c.args) > 0 {
		align(8)
		out = append(out, fieldBody, 1, 'g', 0, byte(len(c.args)))
		out = append(append(out, strings.Repeat("s", len(c.args))...), 0)
	}
	binary.LittleEndian.PutUint32(out[start+12:], uint32(len(out)-fields))
	align(8)
	body := len(out)
	for _, arg := range c.args {
		text(arg)
	}
	binary.LittleEndian.PutUint32(out[start+4:], uint32(len(out)-body))
	return out
}
