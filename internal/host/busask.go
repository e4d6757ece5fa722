// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// asker looks at units by root's private way to systemd: one connection, one question a look, and of the 250 properties
// of a service only those that somebody here reads are decoded. go-systemd makes a second connection for signals, which
// takes systemd a millisecond, and godbus decodes every property by reflection, twice over: together a fifth of what an
// apply with nothing to do took. What changes units is done by go-systemd.
type asker struct {
	mu     sync.Mutex
	socket string // "" = privateBus
	conn   net.Conn
	from   *bufio.Reader
	serial uint32
}

// privateBus is where systemd itself listens: src/core/dbus.c of systemd.
const privateBus = "/run/systemd/private"

// errNoWay means that there is no private way to systemd: only root has one, and a container may hide it.
var errNoWay = errors.New("systemd cannot be asked directly")

// properties asks for those of a unit's properties that are read here; systemd loads it if it is not loaded.
func (a *asker) properties(ctx context.Context, name string) (properties, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		kept := a.conn != nil
		p, err := a.ask(ctx, name)
		if said := (godbus.Error{}); err == nil || errors.As(err, &said) {
			return p, err
		}
		if a.conn != nil {
			_ = a.conn.Close()
			a.conn = nil
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if !kept || ctx.Err() != nil {
			return nil, fmt.Errorf("systemd does not answer on D-Bus: %w", err)
		}
		// A connection that was kept may be closed by now: systemd closes all of them when it is upgraded.
	}
}

// ask asks once. After an error that is none of systemd's own the connection is of no use any more.
func (a *asker) ask(ctx context.Context, name string) (properties, error) {
	ctx, stop := context.WithTimeout(ctx, lookLimit)
	defer stop()
	if a.conn == nil {
		if err := a.open(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoWay, err)
		}
	}
	defer endWith(ctx, a.conn)()
	a.serial++
	if _, err := a.conn.Write(getAll(a.serial, "/org/freedesktop/systemd1/unit/"+dbus.PathBusEscape(name))); err != nil {
		return nil, err
	}
	return readProperties(a.from, a.serial)
}

// endWith has the connection's reads and writes end when the context does. What it returns lets go of them.
func endWith(ctx context.Context, conn net.Conn) (letGo func()) {
	_ = conn.SetDeadline(time.Time{}) // its only error is a closed connection, which the write tells too
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// ready connects, since systemd takes a millisecond to let somebody in. Where it cannot, whoever asks is told why.
func (a *asker) ready() {
	a.mu.Lock()
	defer a.mu.Unlock()
	ctx, stop := context.WithTimeout(context.Background(), lookLimit)
	defer stop()
	if a.conn == nil {
		_ = a.open(ctx)
	}
}

// open connects and says who we are, which systemd checks with the kernel.
// Source: https://dbus.freedesktop.org/doc/dbus-specification.html#auth-protocol
func (a *asker) open(ctx context.Context) error {
	if os.Geteuid() != 0 && a.socket == "" {
		return errors.New("only root may")
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", cmp.Or(a.socket, privateBus))
	if err != nil {
		return err
	}
	defer endWith(ctx, conn)()
	from := bufio.NewReaderSize(conn, 512)
	me := hex.EncodeToString([]byte(strconv.Itoa(os.Geteuid())))
	if _, err = conn.Write([]byte("\x00AUTH EXTERNAL " + me + "\r\nBEGIN\r\n")); err == nil {
		var answer []byte
		if answer, err = from.ReadSlice('\n'); err == nil && !strings.HasPrefix(string(answer), "OK ") {
			err = fmt.Errorf("it answers %q", answer)
		}
	}
	if err != nil {
		_ = conn.Close()
		return err
	}
	a.conn, a.from = conn, from
	return nil
}
