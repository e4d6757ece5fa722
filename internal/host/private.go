// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// privateSocket is root's way to systemd that needs no message bus: bus_init_private in systemd's src/core/dbus.c; go-systemd's
// dbus.NewSystemdConnectionContext takes it too.
const privateSocket = "/run/systemd/private"

// question is a call to systemd.
type question struct {
	path, method string
	args         []any
}

const (
	systemdUnit    = "org.freedesktop.systemd1.Unit"
	systemdService = "org.freedesktop.systemd1.Service"
	systemdManager = "org.freedesktop.systemd1.Manager"
	propertiesGet  = "org.freedesktop.DBus.Properties.Get"
	noSuchUnit     = "org.freedesktop.systemd1.NoSuchUnit"
)

// wanted are the properties that make a Unit, of all units and of services: org.freedesktop.systemd1(5). A unit has 300 of them, and
// to make, send and read all took a third of the processor time of an apply with nothing to do. The state comes last: of a unit that
// changes meanwhile it is what the process that was found has become.
func wanted(name string) (all [][2]string) {
	if path.Ext(name) == ".service" {
		all = [][2]string{{systemdService, "MainPID"}, {systemdService, "ExecMainStartTimestamp"}, {systemdService, "ExecMainStartTimestampMonotonic"}}
	}
	return append(all, [][2]string{
		{systemdUnit, "ActiveEnterTimestamp"},
		{systemdUnit, "ActiveEnterTimestampMonotonic"},
		{systemdUnit, "LoadState"},
		{systemdUnit, "UnitFileState"},
		{systemdUnit, "NeedDaemonReload"},
		{systemdUnit, "FragmentPath"},
		{systemdUnit, "DropInPaths"},
		{systemdUnit, "ActiveState"},
		{systemdUnit, "SubState"},
	}...)
}

// private is the connection to systemd's private socket, for the questions that make a Unit. For each connection systemd first builds all
// that it can answer with, which takes it 2 ms, as long as 40 answers take (bus_on_connection and bus_setup_api in systemd's
// src/core/dbus.c; measured with 257). So one serves all questions that come close together.
type private struct {
	mu   sync.Mutex
	conn *privateConn // nil if there is none
	idle *time.Timer
}

// privateIdle is how long a connection is kept without a question: systemd sends every signal down its private sockets, and keeps what
// is not read.
const privateIdle = 100 * time.Millisecond

// properties asks for what makes a Unit.
func (p *private) properties(ctx context.Context, socket, name string) (properties, error) {
	all := wanted(name)
	questions := make([]question, len(all))
	for i, of := range all {
		questions[i] = question{"/org/freedesktop/systemd1/unit/" + dbus.PathBusEscape(name), propertiesGet, []any{of[0], of[1]}}
	}
	answers, err := p.ask(ctx, socket, questions)
	if err != nil {
		return nil, err
	}
	found := properties{}
	for i, of := range all {
		v, _ := answers[i].(godbus.Variant)
		found[of[1]] = v.Value()
	}
	return found, nil
}

// unknown says that systemd does not know a unit. GetUnit does not make systemd load it: for a unit without a file that means a search of
// all folders, and two signals to all that listen (method_get_unit in systemd's src/core/dbus-manager.c, manager_dispatch_gc_unit_queue in
// src/core/manager.c).
func (p *private) unknown(ctx context.Context, socket, name string) bool {
	_, err := p.ask(ctx, socket, []question{{"/org/freedesktop/systemd1", systemdManager + ".GetUnit", []any{name}}})
	var refused godbus.Error
	return errors.As(err, &refused) && refused.Name == noSuchUnit
}

// prepare connects for the questions that will come: systemd works on the connection meanwhile.
func (p *private) prepare(socket string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, stop := context.WithTimeout(context.Background(), privateIdle)
	defer stop()
	if conn, err := dialPrivate(ctx, socket); err == nil {
		p.keep(conn)
	}
}

// keep keeps the connection for the next question. A timer that could not be stopped any more ends it with the last answer.
func (p *private) keep(conn *privateConn) {
	p.conn = conn
	p.idle = time.AfterFunc(privateIdle, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.conn != nil {
			p.conn.Close()
			p.conn = nil
		}
	})
}

// ask asks systemd. A connection that was kept may have ended meanwhile: systemd ends all when it is replaced.
func (p *private) ask(ctx context.Context, socket string, questions []question) ([]any, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if conn := p.conn; conn != nil {
		p.conn = nil
		p.idle.Stop()
		if answers, err := p.over(ctx, conn, questions); p.conn != nil || ctx.Err() != nil {
			return answers, err
		}
	}
	conn, err := dialPrivate(ctx, socket)
	if err != nil {
		return nil, err
	}
	return p.over(ctx, conn, questions)
}

// over asks over a connection, and keeps it if all was answered, be it with errors.
func (p *private) over(ctx context.Context, conn *privateConn, questions []question) ([]any, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	answers, refused, err := conn.ask(questions)
	if !stop() || err != nil {
		conn.Close()
		return nil, errors.Join(err, ctx.Err())
	}
	p.keep(conn)
	return answers, refused
}

// privateConn is a connection to systemd's private socket.
type privateConn struct {
	net.Conn
	in       *bufio.Reader
	accepted bool   // systemd has said that it knows who asks
	serial   uint32 // of the last call
}

// dialPrivate connects, and authenticates with one write, as systemctl does. The first question reads what systemd says to it.
func dialPrivate(ctx context.Context, socket string) (*privateConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	user := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
	if _, err := conn.Write([]byte("\x00AUTH EXTERNAL " + user + "\r\nBEGIN\r\n")); err != nil {
		conn.Close()
		return nil, err
	}
	return &privateConn{Conn: conn, in: bufio.NewReader(conn)}, nil
}

// ask sends all questions with one write, once systemd has agreed: what comes together with BEGIN systemd reads with it, and does not
// process before more comes (bus_socket_read_auth and bus_socket_start_auth_client in systemd's src/libsystemd/sd-bus/bus-socket.c;
// "Authentication Protocol" in the D-Bus specification). The answers are in the order of the questions; refused is the first that is an
// error.
func (c *privateConn) ask(questions []question) (answers []any, refused, err error) {
	if !c.accepted {
		if line, err := c.in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "OK ") {
			return nil, nil, errors.Join(errors.New("systemd refuses the connection"), err)
		}
		c.accepted = true
	}
	var out bytes.Buffer
	first := c.serial + 1
	for _, q := range questions {
		c.serial++
		if err := q.write(&out, c.serial); err != nil {
			return nil, nil, err
		}
	}
	if _, err := c.Write(out.Bytes()); err != nil {
		return nil, nil, err
	}
	answers = make([]any, len(questions))
	for left := len(questions); left > 0; {
		m, err := godbus.DecodeMessage(c.in)
		if err != nil {
			return nil, nil, err
		}
		serial, _ := m.Headers[godbus.FieldReplySerial].Value().(uint32)
		if serial < first || serial > c.serial {
			continue // a signal
		}
		left--
		switch {
		case m.Type == godbus.TypeError && refused == nil:
			name, _ := m.Headers[godbus.FieldErrorName].Value().(string)
			refused = godbus.Error{Name: name, Body: m.Body}
		case m.Type == godbus.TypeMethodReply && len(m.Body) == 1:
			answers[serial-first] = m.Body[0]
		}
	}
	return answers, refused, nil
}

// write writes the call.
func (q question) write(out *bytes.Buffer, serial uint32) error {
	dot := strings.LastIndexByte(q.method, '.')
	m := &godbus.Message{
		Type: godbus.TypeMethodCall,
		Headers: map[godbus.HeaderField]godbus.Variant{
			godbus.FieldPath:        godbus.MakeVariant(godbus.ObjectPath(q.path)),
			godbus.FieldDestination: godbus.MakeVariant("org.freedesktop.systemd1"),
			godbus.FieldInterface:   godbus.MakeVariant(q.method[:dot]),
			godbus.FieldMember:      godbus.MakeVariant(q.method[dot+1:]),
			godbus.FieldSignature:   godbus.MakeVariant(godbus.SignatureOf(q.args...)),
		},
		Body: q.args,
	}
	at := out.Len()
	if err := m.EncodeTo(out, binary.LittleEndian); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(out.Bytes()[at+8:], serial) // its place in the header by the D-Bus specification: godbus keeps it to itself
	return nil
}
