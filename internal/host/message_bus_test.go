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
	"sync"
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

// ofService are the properties that are asked for of a service that has a main process.
func ofService() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(answers)), func(name string) bool { return strings.HasPrefix(name, "ActiveEnter") })
}

// manager answers as a message bus with systemd does: authentication and Hello by the D-Bus specification, then a reply to each call.
type manager struct {
	refuse string // what it refuses: "auth", or a property
	signal bool   // whether signals come between
	hangup int    // connections that it ends after their first answers
	silent bool   // whether it accepts, and says no more

	socket string
	mu     sync.Mutex
	conns  int      // how many it has accepted
	called []string // path, method, arguments
}

func (s *manager) start(t *testing.T) *manager {
	t.Helper()
	s.socket = filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func (s *manager) serve(conn net.Conn) {
	defer conn.Close()
	s.mu.Lock()
	s.conns++
	ends := s.conns <= s.hangup
	s.mu.Unlock()
	in := bufio.NewReader(conn)
	auth, _ := in.ReadString('\n')
	begin, _ := in.ReadString('\n')
	if !strings.HasPrefix(auth, "\x00AUTH EXTERNAL ") || begin != "BEGIN\r\n" {
		return
	}
	if s.refuse == "auth" {
		_, _ = conn.Write([]byte("REJECTED EXTERNAL\r\n"))
		return
	}
	_, _ = conn.Write([]byte("OK ba5713bdffaf44cfb9e8bbd883cc6a47\r\n"))
	for known := false; ; known = true {
		m, err := godbus.DecodeMessage(in)
		if err != nil {
			return
		}
		member, _ := m.Headers[godbus.FieldMember].Value().(string)
		if !known && member != "Hello" { // a bus ends a connection whose first message is another
			return
		}
		if s.silent {
			continue
		}
		headers := map[godbus.HeaderField]any{godbus.FieldReplySerial: m.Serial()}
		if member == "Hello" {
			send(conn, godbus.TypeMethodReply, headers, ":1.42")
			send(conn, godbus.TypeSignal, map[godbus.HeaderField]any{
				godbus.FieldPath: godbus.ObjectPath("/org/freedesktop/DBus"), godbus.FieldInterface: "org.freedesktop.DBus", godbus.FieldMember: "NameAcquired",
			}, ":1.42")
			continue
		}
		at, _ := m.Headers[godbus.FieldPath].Value().(godbus.ObjectPath)
		call := string(at) + " " + member
		for _, arg := range m.Body {
			call += " " + arg.(string)
		}
		s.mu.Lock()
		s.called = append(s.called, call)
		s.mu.Unlock()
		if s.signal {
			send(conn, godbus.TypeSignal, map[godbus.HeaderField]any{
				godbus.FieldPath: godbus.ObjectPath("/org/freedesktop/systemd1"), godbus.FieldInterface: "org.freedesktop.systemd1.Manager", godbus.FieldMember: "UnitNew",
				godbus.FieldReplySerial: m.Serial(), // dbus-broker lets any user send one that claims to be an answer
			}, "x.service")
		}
		last := m.Body[len(m.Body)-1].(string)
		switch {
		case s.refuse == last:
			headers[godbus.FieldErrorName] = "org.freedesktop.DBus.Error.UnknownProperty"
			send(conn, godbus.TypeError, headers, "Unknown property")
		case member == "GetUnit" && last != "loaded.service": // by systemd 257: busctl call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager GetUnit s x.service
			headers[godbus.FieldErrorName] = "org.freedesktop.systemd1.NoSuchUnit"
			send(conn, godbus.TypeError, headers, "Unit "+last+" not loaded.")
		case member == "GetUnit":
			send(conn, godbus.TypeMethodReply, headers, godbus.ObjectPath("/org/freedesktop/systemd1/unit/loaded_2eservice"))
		default:
			answer := answers[last]
			if strings.HasSuffix(string(at), "/mainless_2eservice") { // Type=oneshot without ExecStart, or Type=forking that systemd lost
				switch answer.(type) {
				case uint64:
					if strings.HasPrefix(last, "ExecMain") {
						answer = uint64(0)
					}
				case uint32:
					answer = uint32(0)
				}
			}
			send(conn, godbus.TypeMethodReply, headers, godbus.MakeVariant(answer))
		}
		if ends && (member == "GetUnit" || last == "SubState") {
			return
		}
	}
}

// seen are how many connections were made, and the calls.
func (s *manager) seen() (int, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns, slices.Clone(s.called)
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

// All that makes a Unit is asked for at once, and what else systemd says between does no harm.
func TestMessageBus(t *testing.T) {
	for _, signal := range []bool{false, true} {
		s := (&manager{signal: signal}).start(t)
		var bus messageBus
		p, err := bus.properties(t.Context(), s.socket, "containerd.service")
		if err != nil {
			t.Fatal(err)
		}
		u := p.unit()
		if u.PID != 190 || u.Load != "loaded" || u.Enabled != "enabled" || u.Active != "active" || u.Since != 66517369924*time.Microsecond || u.Outdated ||
			!slices.Equal(u.Files, []string{"/usr/lib/systemd/system/containerd.service", "/etc/systemd/system/containerd.service.d/10.conf"}) {
			t.Errorf("%+v", u)
		}
		if got := slices.Sorted(maps.Keys(p)); !slices.Equal(got, ofService()) {
			t.Errorf("asked for %q", got)
		}
		const first = "/org/freedesktop/systemd1/unit/containerd_2eservice Get org.freedesktop.systemd1.Service MainPID"
		if _, got := s.seen(); len(got) != len(ofService()) || got[0] != first {
			t.Errorf("%q", got)
		}
	}
}

// A unit without a main process counts from when it became active.
func TestMessageBusMainless(t *testing.T) {
	s := (&manager{}).start(t)
	var bus messageBus
	for _, name := range []string{"mainless.service", "multi-user.target"} {
		p, err := bus.properties(t.Context(), s.socket, name)
		if err != nil {
			t.Fatal(err)
		}
		if u := p.unit(); u.PID != 0 || u.Since != 66517491801*time.Microsecond {
			t.Errorf("%s: %+v", name, u)
		}
	}
}

// One connection serves all questions, also from several at once; systemd's refusal of one does not end it.
func TestMessageBusKept(t *testing.T) {
	s := (&manager{signal: true}).start(t)
	var bus messageBus
	bus.prepare(s.socket)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if p, err := bus.properties(t.Context(), s.socket, "containerd.service"); err != nil || get[uint32](p, "MainPID") != 190 {
				t.Errorf("%v, %v", p, err)
			}
			if !bus.unknown(t.Context(), s.socket, "x.service") || bus.unknown(t.Context(), s.socket, "loaded.service") {
				t.Error("what systemd does not know, and what it knows, is mixed up")
			}
		})
	}
	all.Wait()
	if conns, calls := s.seen(); conns != 1 || len(calls) != 4*(len(ofService())+2) {
		t.Errorf("%d connections, %d calls", conns, len(calls))
	}
}

// A connection that the bus has ended meanwhile, as when its daemon is restarted, is replaced.
func TestMessageBusEnded(t *testing.T) {
	s := (&manager{hangup: 2}).start(t)
	var bus messageBus
	for range 4 {
		if p, err := bus.properties(t.Context(), s.socket, "containerd.service"); err != nil || len(p) != len(ofService()) {
			t.Fatalf("%v, %v", p, err)
		}
	}
	if conns, _ := s.seen(); conns != 3 {
		t.Errorf("%d connections", conns)
	}
}

// An answer that is not whole is no answer: go-systemd is asked then.
func TestMessageBusRefused(t *testing.T) {
	for _, refuse := range []string{"auth", "ExecMainStartTimestamp", "ActiveState"} {
		s := (&manager{refuse: refuse}).start(t)
		var bus messageBus
		for range 2 {
			if p, err := bus.properties(t.Context(), s.socket, "containerd.service"); err == nil {
				t.Errorf("%s is refused: %v", refuse, p)
			}
		}
	}
	var bus messageBus
	if _, err := bus.properties(t.Context(), filepath.Join(t.TempDir(), "none"), "x.service"); err == nil {
		t.Error("no socket, and an answer")
	}
	if bus.unknown(t.Context(), filepath.Join(t.TempDir(), "none"), "x.service") {
		t.Error("no socket, and systemd does not know the unit")
	}
}

// A bus that does not answer ends with the caller's patience, and so does the wait for another caller. With its own limit it is not asked
// again: it costs a process that time once.
func TestMessageBusSilent(t *testing.T) {
	s := (&manager{silent: true}).start(t)
	var bus messageBus
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if _, err := bus.properties(ctx, s.socket, "x.service"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
	all.Wait()
	if bus.off {
		t.Error("a caller without patience turns the bus off")
	}
	if _, err := bus.properties(t.Context(), s.socket, "x.service"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if _, err := bus.properties(t.Context(), s.socket, "x.service"); !errors.Is(err, errBusOff) {
		t.Errorf("asked again: %v", err)
	}
}
