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
	"fmt"
	"net"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// privateSocket is root's way to systemd that needs no message bus: bus_init_private in systemd's src/core/dbus.c; go-systemd's
// dbus.NewSystemdConnectionContext takes it too.
const privateSocket = "/run/systemd/private"

// wanted are the properties that make a Unit, of all units and of services: org.freedesktop.systemd1(5). A unit has 300 of them, and
// to make, send and read all took a third of the processor time of an apply with nothing to do. The state comes last: of a unit that
// changes meanwhile it is what the process that was found has become.
//
// Of a unit without a file two say that systemd does not know it either. Systemd drops such a unit after each answer, and would search
// all folders again for each further one (manager_dispatch_gc_unit_queue in src/core/manager.c).
func wanted(name string, there bool) (all [][2]string) {
	const unit, service = "org.freedesktop.systemd1.Unit", "org.freedesktop.systemd1.Service"
	if !there {
		return [][2]string{{unit, "LoadState"}, {unit, "ActiveState"}}
	}
	if path.Ext(name) == ".service" {
		all = [][2]string{{service, "MainPID"}, {service, "ExecMainStartTimestamp"}, {service, "ExecMainStartTimestampMonotonic"}}
	}
	return append(all, [][2]string{
		{unit, "ActiveEnterTimestamp"},
		{unit, "ActiveEnterTimestampMonotonic"},
		{unit, "LoadState"},
		{unit, "UnitFileState"},
		{unit, "NeedDaemonReload"},
		{unit, "FragmentPath"},
		{unit, "DropInPaths"},
		{unit, "ActiveState"},
		{unit, "SubState"},
	}...)
}

// ask asks systemd for what makes a Unit. It authenticates as systemctl does, with one write, and asks with the next, once systemd has
// agreed: what comes together with BEGIN systemd reads with it, and does not process before more comes (bus_socket_read_auth and
// bus_socket_start_auth_client in systemd's src/libsystemd/sd-bus/bus-socket.c; "Authentication Protocol" in the D-Bus specification).
// The connection ends with the answer: systemd sends every signal down its private sockets, and keeps what is not read.
func ask(ctx context.Context, socket, name string, all [][2]string) (properties, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	user := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
	if _, err := conn.Write([]byte("\x00AUTH EXTERNAL " + user + "\r\nBEGIN\r\n")); err != nil {
		return nil, err
	}
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "OK ") {
		return nil, errors.Join(errors.New("systemd refuses the connection"), err)
	}
	var out bytes.Buffer
	for i, p := range all {
		if err := question(&out, uint32(i+1), name, p); err != nil {
			return nil, err
		}
	}
	if _, err := conn.Write(out.Bytes()); err != nil {
		return nil, err
	}
	found := properties{}
	for len(found) < len(all) {
		m, err := godbus.DecodeMessage(in)
		if err != nil {
			return nil, err
		}
		serial, _ := m.Headers[godbus.FieldReplySerial].Value().(uint32)
		switch {
		case m.Type == godbus.TypeError:
			return nil, fmt.Errorf("systemd does not say all of %s", name)
		case m.Type != godbus.TypeMethodReply || serial == 0 || int(serial) > len(all) || len(m.Body) != 1:
			continue // a signal
		}
		v, _ := m.Body[0].(godbus.Variant)
		found[all[serial-1][1]] = v.Value()
	}
	return found, nil
}

// question writes the call that asks for a property.
func question(out *bytes.Buffer, serial uint32, name string, p [2]string) error {
	m := &godbus.Message{
		Type: godbus.TypeMethodCall,
		Headers: map[godbus.HeaderField]godbus.Variant{
			godbus.FieldPath:        godbus.MakeVariant(godbus.ObjectPath("/org/freedesktop/systemd1/unit/" + dbus.PathBusEscape(name))),
			godbus.FieldDestination: godbus.MakeVariant("org.freedesktop.systemd1"),
			godbus.FieldInterface:   godbus.MakeVariant("org.freedesktop.DBus.Properties"),
			godbus.FieldMember:      godbus.MakeVariant("Get"),
			godbus.FieldSignature:   godbus.MakeVariant(godbus.SignatureOf("", "")),
		},
		Body: []any{p[0], p[1]},
	}
	at := out.Len()
	if err := m.EncodeTo(out, binary.LittleEndian); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(out.Bytes()[at+8:], serial) // its place in the header by the D-Bus specification: godbus keeps it to itself
	return nil
}
