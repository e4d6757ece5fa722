// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"

	godbus "github.com/godbus/dbus/v5"
)

// The few lines of D-Bus that a look needs.
// Source: https://dbus.freedesktop.org/doc/dbus-specification.html#message-protocol

// What a message is, and the fields of its header.
const (
	isReply, isError                                       = 2, 3
	fieldPath, fieldInterface, fieldMember, fieldErrorName = 1, 2, 3, 4
	fieldReplyTo, fieldTo, fieldSignature                  = 5, 6, 8
)

// mostSaid is more than systemd says of any unit, in bytes.
const mostSaid = 16 << 20

var errWire = errors.New("systemd's answer is no D-Bus message")

// getAll is the question for all properties of all interfaces of a unit.
func getAll(serial uint32, path string) []byte {
	order := binary.LittleEndian
	text := func(to []byte, s string) []byte {
		return append(append(order.AppendUint32(to, uint32(len(s))), s...), 0)
	}
	body := text(nil, "") // no interface: those of all
	m := append([]byte{'l', 1, 0, 1}, make([]byte, 12)...)
	order.PutUint32(m[4:], uint32(len(body)))
	order.PutUint32(m[8:], serial)
	for _, f := range []struct {
		code      byte
		kind, say string
	}{
		{fieldPath, "o", path},
		{fieldInterface, "s", "org.freedesktop.DBus.Properties"},
		{fieldMember, "s", "GetAll"},
		{fieldTo, "s", "org.freedesktop.systemd1"},
	} {
		m = append(pad(m, 8), f.code, 1, f.kind[0], 0)
		m = text(m, f.say)
	}
	m = append(pad(m, 8), fieldSignature, 1, 'g', 0, 1, 's', 0)
	order.PutUint32(m[12:], uint32(len(m)-16))
	return append(pad(m, 8), body...)
}

func pad(m []byte, to int) []byte {
	for len(m)%to != 0 {
		m = append(m, 0)
	}
	return m
}

// readProperties reads messages up to the answer: to a private connection systemd tells all its signals.
func readProperties(from io.Reader, serial uint32) (properties, error) {
	for {
		var head [16]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return nil, err
		}
		w := wire{order: binary.LittleEndian, data: head[:], at: 4}
		if head[0] == 'B' {
			w.order = binary.BigEndian
		}
		body, _, fields := w.number(), w.number(), w.number()
		if head[0] != 'B' && head[0] != 'l' || fields > mostSaid || body > mostSaid {
			return nil, errWire
		}
		start := int(fields+7) &^ 7
		data := make([]byte, start+int(body))
		if _, err := io.ReadFull(from, data); err != nil {
			return nil, err
		}
		answers, problem := wire{order: w.order, data: data[:fields]}.header()
		if head[1] != isReply && head[1] != isError || answers != serial {
			continue
		}
		said := wire{order: w.order, data: data[start:]}
		if head[1] == isError {
			return nil, godbus.Error{Name: problem, Body: []any{said.text()}}
		}
		return said.properties()
	}
}

// wire reads values from a part of a message that begins where 8 byte numbers may. What runs over its end is bad, and empty.
type wire struct {
	order binary.ByteOrder
	data  []byte
	at    int
	bad   bool
}

// header reads which question is answered, and an error's name.
func (w wire) header() (answers uint32, problem string) {
	for w.at < len(w.data) && !w.bad {
		w.align(8)
		code, kind := w.octet(), w.signature()
		switch {
		case code == fieldReplyTo && kind == "u":
			answers = w.number()
		case code == fieldErrorName && kind == "s":
			problem = w.text()
		default:
			w.skip(kind, 0)
		}
	}
	return answers, problem
}

// properties reads a{sv}: those that are asked for here, in the types that they have.
func (w *wire) properties() (properties, error) {
	p := properties{}
	end := int(w.number())
	w.align(8)
	if end += w.at; end > len(w.data) {
		return nil, errWire
	}
	for w.at < end && !w.bad {
		w.align(8)
		name, kind := w.counted(w.number()), w.signature()
		switch string(name) {
		case "LoadState", "UnitFileState", "ActiveState", "SubState", "Result", "NeedDaemonReload", "ConditionResult",
			"FragmentPath", "DropInPaths", "MainPID", "ExecMainStartTimestamp", "ExecMainStartTimestampMonotonic",
			"ActiveEnterTimestamp", "ActiveEnterTimestampMonotonic":
			p[string(name)] = w.value(kind)
		default:
			w.skip(kind, 0)
		}
	}
	if w.bad {
		return nil, errWire
	}
	return p, nil
}

// value reads a value of the types that those properties have; nil if it is of another.
func (w *wire) value(kind string) any {
	switch kind {
	case "s":
		return w.text()
	case "b":
		return w.number() != 0
	case "u":
		return w.number()
	case "t":
		w.align(8)
		if b := w.take(8); b != nil {
			return w.order.Uint64(b)
		}
		return nil
	case "as":
		return w.texts()
	}
	w.skip(kind, 0)
	return nil
}

func (w *wire) take(n int) []byte {
	if w.bad || n < 0 || n > len(w.data)-w.at {
		w.bad = true
		return nil
	}
	w.at += n
	return w.data[w.at-n : w.at]
}

func (w *wire) align(to int) { w.take(-w.at & (to - 1)) }

func (w *wire) octet() byte {
	if b := w.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (w *wire) number() uint32 {
	w.align(4)
	if b := w.take(4); b != nil {
		return w.order.Uint32(b)
	}
	return 0
}

// counted reads bytes and the zero behind them.
func (w *wire) counted(n uint32) []byte {
	b := w.take(int(n))
	w.take(1)
	return b
}

func (w *wire) text() string { return string(w.counted(w.number())) }

func (w *wire) signature() string { return string(w.counted(uint32(w.octet()))) }

func (w *wire) texts() (all []string) {
	for end := int(w.number()) + w.at; w.at < end && !w.bad; {
		all = append(all, w.text())
	}
	return all
}

// skip passes over a value of the first type of a signature and returns the signature's rest.
func (w *wire) skip(kind string, depth int) (rest string) {
	if kind == "" || depth > 64 { // the specification's limit, containers in containers
		w.bad = true
		return ""
	}
	rest = after(kind)
	w.align(alignment(kind[0]))
	switch kind[0] {
	case 'y':
		w.take(1)
	case 'n', 'q':
		w.take(2)
	case 'b', 'i', 'u', 'h':
		w.take(4)
	case 'x', 't', 'd':
		w.take(8)
	case 's', 'o':
		w.counted(w.number())
	case 'g':
		w.counted(uint32(w.octet()))
	case 'v':
		w.skip(w.signature(), depth+1)
	case 'a':
		n := w.number()
		if len(kind) > 1 {
			w.align(alignment(kind[1]))
		}
		w.take(int(n))
	case '(', '{':
		for inner := kind[1:max(1, len(kind)-len(rest)-1)]; inner != "" && !w.bad; {
			inner = w.skip(inner, depth+1)
		}
	default:
		w.bad = true
	}
	return rest
}

// alignment is where a value of a type begins: at a multiple of this.
func alignment(kind byte) int {
	switch kind {
	case 'n', 'q':
		return 2
	case 'b', 'i', 'u', 'h', 's', 'o', 'a':
		return 4
	case 'x', 't', 'd', '(', '{':
		return 8
	}
	return 1
}

// after is a signature without its first type.
func after(kind string) string {
	kind = strings.TrimLeft(kind, "a")
	open := 0
	for i := range len(kind) {
		switch kind[i] {
		case '(', '{':
			open++
		case ')', '}':
			open--
		}
		if open == 0 {
			return kind[i+1:]
		}
	}
	return ""
}
