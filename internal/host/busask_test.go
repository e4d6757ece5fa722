// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"testing"

	godbus "github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
)

// told is what a systemd of the tests says of a unit, with values of every type that D-Bus has between those that are read.
func told() map[string]godbus.Variant {
	type pair struct {
		A string
		B uint64
	}
	v := godbus.MakeVariant
	return map[string]godbus.Variant{
		"LoadState": v("loaded"), "ActiveState": v("active"), "MainPID": v(uint32(172)), "NeedDaemonReload": v(true), "ConditionResult": v(false),
		"DropInPaths": v([]string{"/a/b.conf", "/a/c.conf"}), "ExecMainStartTimestamp": v(uint64(1) << 50),
		"Bytes": v([]byte{1, 2, 3}), "Small": v(int16(-2)), "Half": v(uint16(2)), "Float": v(1.5), "Wide": v(int64(-9)), "Path": v(godbus.ObjectPath("/x")),
		"Job": v(pair{"x", 1}), "Jobs": v([]pair{{"x", 1}, {"yy", 2}}), "None": v([]pair{}), "Map": v(map[string]uint64{"k": 7}), "Sig": v(godbus.SignatureOf(true)),
		"Deep": v([][]string{{"a"}, {}, {"b", "c"}}), "Variant": v(v([]any{v(byte(1)), v("x")})), "Nest": v(struct{ In struct{ B byte } }{}),
		"ActiveEnterTimestampMonotonic": v(uint64(77)), "Id": v("containerd.service"),
	}
}

func heard() properties {
	return properties{
		"LoadState": "loaded", "ActiveState": "active", "MainPID": uint32(172), "NeedDaemonReload": true, "ConditionResult": false,
		"DropInPaths": []string{"/a/b.conf", "/a/c.conf"}, "ExecMainStartTimestamp": uint64(1) << 50, "ActiveEnterTimestampMonotonic": uint64(77),
	}
}

// message writes one by godbus.
func message(t testing.TB, order binary.ByteOrder, kind godbus.Type, answers uint32, problem string, body ...any) []byte {
	t.Helper()
	m := &godbus.Message{Type: kind, Headers: map[godbus.HeaderField]godbus.Variant{}, Body: body}
	m.Headers[godbus.FieldReplySerial] = godbus.MakeVariant(answers)
	if problem != "" {
		m.Headers[godbus.FieldErrorName] = godbus.MakeVariant(problem)
	}
	if kind == godbus.TypeSignal {
		m.Headers[godbus.FieldPath] = godbus.MakeVariant(godbus.ObjectPath("/org/freedesktop/systemd1"))
		m.Headers[godbus.FieldInterface], m.Headers[godbus.FieldMember] = godbus.MakeVariant("a.b"), godbus.MakeVariant("JobRemoved")
	}
	if len(body) > 0 {
		m.Headers[godbus.FieldSignature] = godbus.MakeVariant(godbus.SignatureOf(body...))
	}
	var to bytes.Buffer
	if err := m.EncodeTo(&to, order); err != nil {
		t.Fatal(err)
	}
	data := to.Bytes()
	order.PutUint32(data[8:], 9) // a message has a serial; godbus sets it where it sends
	return data
}

func TestReadProperties(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		var said []byte
		said = append(said, message(t, order, godbus.TypeSignal, 5, "", uint32(5), "signal")...)
		said = append(said, message(t, order, godbus.TypeMethodReply, 4, "", map[string]godbus.Variant{"MainPID": godbus.MakeVariant(uint32(1))})...)
		said = append(said, message(t, order, godbus.TypeMethodReply, 5, "", told())...)
		got, err := readProperties(bytes.NewReader(said), 5)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(heard(), got); diff != "" {
			t.Error(order, diff)
		}
		for cut := range len(said) {
			if _, err := readProperties(bytes.NewReader(said[:cut]), 5); err == nil {
				t.Fatalf("an answer cut off at %d of %d is taken", cut, len(said))
			}
		}
	}
}

func TestGetAll(t *testing.T) {
	m, err := godbus.DecodeMessage(bytes.NewReader(getAll(7, "/org/x")))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.IsValid(); err != nil || m.Serial() != 7 || m.Type != godbus.TypeMethodCall {
		t.Fatal(m, err)
	}
	want := `method call to org.freedesktop.systemd1 serial 7 path /org/x interface org.freedesktop.DBus.Properties member GetAll`
	if got := m.String(); !strings.HasPrefix(got, want) || len(m.Body) != 1 || m.Body[0] != "" {
		t.Errorf("%s %v", got, m.Body)
	}
}

// private serves each connection with a function until the test ends.
func private(t *testing.T, serve func(n int, in *bufio.Reader, out net.Conn)) *asker {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "private")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for n := 1; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewReader(conn)
			for range 2 { // AUTH, BEGIN
				_, _ = in.ReadString('\n')
			}
			serve(n, in, conn)
			_ = conn.Close()
		}
	}()
	return &asker{socket: socket}
}

// question reads one and returns the unit's path and the question's serial.
func question(in io.Reader) (path string, serial uint32, err error) {
	m, err := godbus.DecodeMessage(in)
	if err != nil {
		return "", 0, err
	}
	at, _ := m.Headers[godbus.FieldPath].Value().(godbus.ObjectPath)
	return string(at), m.Serial(), nil
}

func TestAsker(t *testing.T) {
	connections := 0
	a := private(t, func(n int, in *bufio.Reader, out net.Conn) {
		connections = n
		_, _ = out.Write([]byte("OK 0123\r\n"))
		for asked := 0; asked < 3; asked++ { // and then it closes, as it does when it is upgraded
			path, serial, err := question(in)
			switch {
			case err != nil:
				return
			case path == "/org/freedesktop/systemd1/unit/a_2db_2eservice":
				_, _ = out.Write(message(t, binary.LittleEndian, godbus.TypeMethodReply, serial, "", told()))
			default:
				_, _ = out.Write(message(t, binary.LittleEndian, godbus.TypeError, serial, "org.freedesktop.systemd1.NoSuchUnit", "Unit "+path+" not found."))
			}
		}
	})
	a.ready()
	if a.conn == nil {
		t.Error("nothing is ready")
	}
	for i := range 9 {
		got, err := a.properties(t.Context(), "a-b.service")
		if err != nil {
			t.Fatal(i, err)
		}
		if diff := cmp.Diff(heard(), got); diff != "" {
			t.Fatal(diff)
		}
		if _, err := a.properties(t.Context(), "c.service"); !errors.Is(plain(err), fs.ErrNotExist) || !strings.Contains(err.Error(), "c_2eservice not found") {
			t.Fatal(err)
		}
	}
	if connections != 6 {
		t.Errorf("18 questions took %d connections that end after 3", connections)
	}
}

func TestAskerRefused(t *testing.T) {
	for _, word := range []string{"REJECTED EXTERNAL\r\n", ""} {
		a := private(t, func(_ int, _ *bufio.Reader, out net.Conn) { _, _ = out.Write([]byte(word)) })
		if _, err := a.properties(t.Context(), "a.service"); !errors.Is(err, errNoWay) {
			t.Errorf("%q: %v", word, err)
		}
	}
	a := &asker{socket: filepath.Join(t.TempDir(), "private")}
	if _, err := a.properties(t.Context(), "a.service"); !errors.Is(err, errNoWay) || !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestAskerGivesUp(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	over := make(chan struct{})
	defer close(over)
	a := private(t, func(_ int, in *bufio.Reader, out net.Conn) {
		_, _ = out.Write([]byte("OK 0123\r\n"))
		_, _, _ = question(in)
		stop(errors.New("enough"))
		<-over
	})
	if _, err := a.properties(ctx, "a.service"); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Error(err)
	}
}

func FuzzReadProperties(f *testing.F) {
	f.Add(message(f, binary.LittleEndian, godbus.TypeMethodReply, 5, "", told()))
	f.Add(message(f, binary.BigEndian, godbus.TypeMethodReply, 5, "", told()))
	f.Add(message(f, binary.LittleEndian, godbus.TypeError, 5, "a.b", "no"))
	f.Fuzz(func(t *testing.T, said []byte) {
		p, err := readProperties(bytes.NewReader(said), 5)
		if err != nil {
			return
		}
		p.unit() // what is read has the types that are expected, or counts as not there
		for name := range p {
			if !bytes.Contains(said, []byte(name)) {
				t.Errorf("%s was not said", name)
			}
		}
	})
}
