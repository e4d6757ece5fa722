// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// Answers are read here and not by godbus: that trusts lengths and types in a message, and ends the process, or takes all memory, where
// they are wrong (seen with 5.1.0).

// mostOfMessage is how long a message may be, in bytes: a property of a unit has a few hundred.
const mostOfMessage = 1 << 20

// errMessage says that what came is no message, or one that gpuadm does not expect.
var errMessage = errors.New("the message bus sends what is no answer")

// busMessage is what a message says: its kind, which call it answers, and its one value or the name of its error.
type busMessage struct {
	kind    byte
	answers uint32
	refusal string
	value   any // of a reply; nil for another one than the answers here have
}

const (
	busReply = 2
	busError = 3

	fieldPath        = 1
	fieldInterface   = 2
	fieldMember      = 3
	fieldError       = 4
	fieldReplyTo     = 5
	fieldDestination = 6
	fieldBody        = 8 // its signature
)

// readMessage reads one message. Source: "Message Format" in https://dbus.freedesktop.org/doc/dbus-specification.html.
func readMessage(in *bufio.Reader) (m busMessage, err error) {
	var fixed [16]byte
	if _, err := io.ReadFull(in, fixed[:]); err != nil {
		return m, err
	}
	var order binary.ByteOrder = binary.LittleEndian
	if fixed[0] == 'B' {
		order = binary.BigEndian
	} else if fixed[0] != 'l' {
		return m, errMessage
	}
	body, fields := uint64(order.Uint32(fixed[4:])), uint64(order.Uint32(fixed[12:]))
	head := (16 + fields + 7) &^ 7 // the body begins at a multiple of 8
	if head+body > mostOfMessage {
		return m, errMessage
	}
	all := append(make([]byte, 0, head+body), fixed[:]...)[:head+body]
	if _, err := io.ReadFull(in, all[16:]); err != nil {
		return m, err
	}
	r := busReader{data: all[:16+fields], at: 16, order: order}
	m.kind = fixed[1]
	of := ""
	for r.at < len(r.data) && !r.bad {
		r.align(8)
		switch code, v := r.byte(), r.variant(); code {
		case fieldError:
			m.refusal, _ = v.(string)
		case fieldReplyTo:
			m.answers, _ = v.(uint32)
		case fieldBody:
			of, _ = v.(string)
		}
	}
	if r.bad {
		return m, errMessage
	}
	if m.kind == busReply && m.answers != 0 {
		r.data, r.at = all, int(head)
		m.value = r.value(of)
		if r.bad || r.at != len(all) {
			m.value = nil
		}
	}
	return m, nil
}

// busReader reads values of a message. What is not there is bad, and reads as zero.
type busReader struct {
	data  []byte
	at    int
	order binary.ByteOrder
	bad   bool
}

func (r *busReader) align(n int) { r.next((n - r.at%n) % n) }

// next are the next n bytes; zeros where there are fewer.
func (r *busReader) next(n int) []byte {
	if n > len(r.data)-r.at {
		r.bad, r.at = true, len(r.data)
		return make([]byte, 8)
	}
	r.at += n
	return r.data[r.at-n : r.at]
}

func (r *busReader) byte() byte { return r.next(1)[0] }

func (r *busReader) uint32() uint32 {
	r.align(4)
	return r.order.Uint32(r.next(4))
}

// text is a string of a length, with a zero behind it.
func (r *busReader) text(n uint32) string {
	if uint64(n) > uint64(len(r.data)-r.at) {
		r.bad = true
		return ""
	}
	s := string(r.next(int(n)))
	r.bad = r.byte() != 0 || r.bad
	return s
}

func (r *busReader) variant() any { return r.value(r.text(uint32(r.byte()))) }

// value is a value of one of the types that headers and units' properties have.
func (r *busReader) value(of string) any {
	switch of {
	case "v":
		return r.variant()
	case "s", "o":
		return r.text(r.uint32())
	case "g":
		return r.text(uint32(r.byte()))
	case "b":
		return r.uint32() != 0
	case "u":
		return r.uint32()
	case "t":
		r.align(8)
		return r.order.Uint64(r.next(8))
	case "as":
		n := r.uint32()
		end := r.at + int(n)
		list := []string{}
		for r.at < end && !r.bad {
			list = append(list, r.text(r.uint32()))
		}
		r.bad = r.bad || r.at != end
		return list
	}
	r.bad = true
	return nil
}
