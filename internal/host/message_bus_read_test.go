// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"

	godbus "github.com/godbus/dbus/v5"
)

// message is one as godbus writes it.
func message(t testing.TB, order binary.ByteOrder, kind godbus.Type, answers uint32, body ...any) []byte {
	t.Helper()
	m := &godbus.Message{Type: kind, Headers: map[godbus.HeaderField]godbus.Variant{
		godbus.FieldReplySerial: godbus.MakeVariant(answers), godbus.FieldSender: godbus.MakeVariant(":1.7"),
	}, Body: body}
	if kind == godbus.TypeError {
		m.Headers[godbus.FieldErrorName] = godbus.MakeVariant("org.example.No")
	}
	if kind == godbus.TypeSignal {
		m.Headers[godbus.FieldPath] = godbus.MakeVariant(godbus.ObjectPath("/org/example"))
		m.Headers[godbus.FieldInterface], m.Headers[godbus.FieldMember] = godbus.MakeVariant("org.example"), godbus.MakeVariant("New")
	}
	if len(body) > 0 {
		m.Headers[godbus.FieldSignature] = godbus.MakeVariant(godbus.SignatureOf(body...))
	}
	var out bytes.Buffer
	if err := m.EncodeTo(&out, order); err != nil {
		t.Fatal(err)
	}
	order.PutUint32(out.Bytes()[8:], 1) // godbus keeps the serial to itself
	return out.Bytes()
}

func TestReadMessage(t *testing.T) {
	long := strings.Repeat("x", 3000)
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, value := range []any{
			"", "active", long, uint32(190), uint64(1) << 63, true, false, []string{}, []string{"a"}, []string{"/etc/a.conf", "", long, "b"},
		} {
			in := bufio.NewReader(bytes.NewReader(append(message(t, order, godbus.TypeMethodReply, 7, godbus.MakeVariant(value)), "rest"...)))
			m, err := readMessage(in)
			if err != nil || m.kind != busReply || m.answers != 7 || !reflect.DeepEqual(m.value, value) {
				t.Errorf("%v: %+v, %v", value, m, err)
			}
			if rest, _ := in.Peek(4); string(rest) != "rest" {
				t.Errorf("%v: it ends before %q", value, rest)
			}
		}
		for what, c := range map[string]struct {
			message []byte
			want    busMessage
		}{
			"a path":         {message(t, order, godbus.TypeMethodReply, 9, godbus.ObjectPath("/a/b")), busMessage{kind: busReply, answers: 9, value: "/a/b"}},
			"an error":       {message(t, order, godbus.TypeError, 9, "because"), busMessage{kind: busError, answers: 9, refusal: "org.example.No"}},
			"two values":     {message(t, order, godbus.TypeMethodReply, 9, "a", "b"), busMessage{kind: busReply, answers: 9}},
			"no value":       {message(t, order, godbus.TypeMethodReply, 9), busMessage{kind: busReply, answers: 9}},
			"another type":   {message(t, order, godbus.TypeMethodReply, 9, godbus.MakeVariant(map[string]string{"a": "b"})), busMessage{kind: busReply, answers: 9}},
			"empty structs":  {message(t, order, godbus.TypeMethodReply, 9, godbus.MakeVariant([]struct{ A string }{})), busMessage{kind: busReply, answers: 9}},
			"a long message": {message(t, order, godbus.TypeSignal, 0, long), busMessage{kind: 4}},
		} {
			m, err := readMessage(bufio.NewReader(bytes.NewReader(c.message)))
			if err != nil || !reflect.DeepEqual(m, c.want) {
				t.Errorf("%s: %+v, %v, want %+v", what, m, err, c.want)
			}
		}
	}
	// Lengths that lie: each alone, and both together, would wrap in 32 bits.
	for _, lengths := range [][2]uint32{{1 << 31, 0}, {0, 1 << 31}, {1<<32 - 1, 1<<32 - 1}, {mostOfMessage, 0}} {
		data := append([]byte("l\x02\x00\x01"), make([]byte, 12)...)
		binary.LittleEndian.PutUint32(data[4:], lengths[0])
		binary.LittleEndian.PutUint32(data[12:], lengths[1])
		if m, err := readMessage(bufio.NewReader(bytes.NewReader(data))); !errors.Is(err, errMessage) {
			t.Errorf("%d: %+v, %v", lengths, m, err)
		}
	}
}

// FuzzReadMessage: no message ends the process or takes more than its own length, and what godbus reads is read alike.
func FuzzReadMessage(f *testing.F) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, value := range []any{"active", uint32(1), uint64(2), true, []string{"a", "b"}, map[string]string{"a": "b"}} {
			f.Add(message(f, order, godbus.TypeMethodReply, 3, godbus.MakeVariant(value)))
		}
		f.Add(message(f, order, godbus.TypeError, 3, "because"))
		f.Add(message(f, order, godbus.TypeSignal, 0, "x.service"))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readMessage(bufio.NewReader(bytes.NewReader(data)))
		if err != nil && !reflect.DeepEqual(m.value, nil) {
			t.Errorf("%+v beside %v", m, err)
		}
		if list, ok := m.value.([]string); ok && len(list) > len(data) {
			t.Errorf("%d texts of %d bytes", len(list), len(data))
		}
	})
}

// TestMethodCall: godbus reads each call as it was meant, also behind others of any length.
func TestMethodCall(t *testing.T) {
	var out []byte
	calls := []methodCall{{"org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello", nil}}
	for n := range 20 {
		calls = append(calls, methodCall{"a.b", "/" + strings.Repeat("p", n+1), "c.d", "Get", []string{strings.Repeat("x", n), "Ä"}})
	}
	for i, c := range calls {
		out = c.append(out, uint32(i+1))
	}
	in := bytes.NewReader(out)
	for i, c := range calls {
		m, err := godbus.DecodeMessage(in)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		header := func(f godbus.HeaderField) any { return m.Headers[f].Value() }
		var args []string
		for _, v := range m.Body {
			args = append(args, v.(string))
		}
		if m.Type != godbus.TypeMethodCall || m.Serial() != uint32(i+1) || header(godbus.FieldPath) != godbus.ObjectPath(c.path) || header(godbus.FieldDestination) != c.to ||
			header(godbus.FieldInterface) != c.of || header(godbus.FieldMember) != c.method || !reflect.DeepEqual(args, c.args) {
			t.Errorf("%+v is read as %+v", c, m)
		}
	}
	if in.Len() > 0 {
		t.Errorf("%d bytes too many", in.Len())
	}
}
