// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	godbus "github.com/godbus/dbus/v5"
)

// answers are what systemd 257.13 of Debian 13 says of containerd.service, by busctl get-property, and a drop-in more.
var answers = map[string]any{
	"MainPID": uint32(190), "ExecMainStartTimestamp": uint64(1795408732500168), "ExecMainStartTimestampMonotonic": uint64(66517369924),
	"ActiveEnterTimestamp": uint64(1795408732622045), "ActiveEnterTimestampMonotonic": uint64(66517491801), "LoadState": "loaded",
	"UnitFileState": "enabled", "NeedDaemonReload": false, "FragmentPath": "/usr/lib/systemd/system/containerd.service",
	"DropInPaths": []string{"/etc/systemd/system/containerd.service.d/10.conf"}, "ActiveState": "active", "SubState": "running",
}

// private answers as systemd does on its private socket: authentication by the D-Bus specification, then a reply to each call, and
// signals between. It hands out the calls.
func private(t *testing.T, refuse string, signal bool) (socket string, called func() []string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "private")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	got, ended := []string{}, make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		auth, _ := in.ReadString('\n')
		begin, _ := in.ReadString('\n')
		if !strings.HasPrefix(auth, "\x00AUTH EXTERNAL ") || begin != "BEGIN\r\n" {
			return
		}
		if refuse == "auth" {
			_, _ = conn.Write([]byte("REJECTED EXTERNAL\r\n"))
			return
		}
		_, _ = conn.Write([]byte("OK ba5713bdffaf44cfb9e8bbd883cc6a47\r\n"))
		for {
			m, err := godbus.DecodeMessage(in)
			if err != nil {
				return
			}
			member, _ := m.Headers[godbus.FieldMember].Value().(string)
			at, _ := m.Headers[godbus.FieldPath].Value().(godbus.ObjectPath)
			got = append(got, string(at)+" "+member+" "+m.Body[0].(string)+" "+m.Body[1].(string))
			if signal {
				send(conn, godbus.TypeSignal, map[godbus.HeaderField]any{
					godbus.FieldPath: godbus.ObjectPath("/org/freedesktop/systemd1"), godbus.FieldInterface: "org.freedesktop.systemd1.Manager", godbus.FieldMember: "UnitNew",
				}, "x.service")
			}
			headers := map[godbus.HeaderField]any{godbus.FieldReplySerial: m.Serial()}
			if refuse == m.Body[1].(string) {
				headers[godbus.FieldErrorName] = "org.freedesktop.DBus.Error.UnknownProperty"
				send(conn, godbus.TypeError, headers, "Unknown property")
				continue
			}
			send(conn, godbus.TypeMethodReply, headers, godbus.MakeVariant(answers[m.Body[1].(string)]))
		}
	}()
	t.Cleanup(func() { l.Close() })
	return socket, func() []string { l.Close(); <-ended; return got }
}

func send(conn net.Conn, kind godbus.Type, headers map[godbus.HeaderField]any, body any) {
	m := &godbus.Message{Type: kind, Headers: map[godbus.HeaderField]godbus.Variant{godbus.FieldSignature: godbus.MakeVariant(godbus.SignatureOf(body))}, Body: []any{body}}
	for k, v := range headers {
		m.Headers[k] = godbus.MakeVariant(v)
	}
	var out bytes.Buffer
	if m.EncodeTo(&out, binary.LittleEndian) == nil {
		binary.LittleEndian.PutUint32(out.Bytes()[8:], 7)
		_, _ = conn.Write(out.Bytes())
	}
}

// One write asks for all that makes a Unit, and what else systemd says between does no harm.
func TestAskPrivate(t *testing.T) {
	for _, signal := range []bool{false, true} {
		socket, called := private(t, "", signal)
		p, err := ask(t.Context(), socket, "containerd.service", wanted("containerd.service", true))
		if err != nil {
			t.Fatal(err)
		}
		u := p.unit()
		if u.PID != 190 || u.Load != "loaded" || u.Enabled != "enabled" || u.Active != "active" || u.Since != 66517369924*time.Microsecond || u.Outdated ||
			!slices.Equal(u.Files, []string{"/usr/lib/systemd/system/containerd.service", "/etc/systemd/system/containerd.service.d/10.conf"}) {
			t.Errorf("%+v", u)
		}
		if got := slices.Sorted(maps.Keys(p)); !slices.Equal(got, slices.Sorted(maps.Keys(answers))) {
			t.Errorf("asked for %q", got)
		}
		const first = "/org/freedesktop/systemd1/unit/containerd_2eservice Get org.freedesktop.systemd1.Service MainPID"
		if got := called(); len(got) != len(answers) || got[0] != first {
			t.Errorf("%q", got)
		}
	}
}

// An answer that is not whole is no answer: go-systemd is asked then.
func TestAskPrivateRefused(t *testing.T) {
	for _, refuse := range []string{"auth", "ExecMainStartTimestamp", "ActiveState"} {
		socket, _ := private(t, refuse, false)
		if p, err := ask(t.Context(), socket, "containerd.service", wanted("containerd.service", true)); err == nil {
			t.Errorf("%s is refused: %v", refuse, p)
		}
	}
	if _, err := ask(t.Context(), filepath.Join(t.TempDir(), "none"), "x.service", wanted("x.service", true)); err == nil {
		t.Error("no socket, and an answer")
	}
}

// A systemd that does not answer ends with the caller's patience.
func TestAskPrivateSilent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "silent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = conn.Read(make([]byte, 1))
			stop()
		}
	}()
	if _, err := ask(ctx, socket, "x.service", wanted("x.service", true)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
