// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"errors"
)

// ProtoFields calls see for each field of a message that holds bytes.
func ProtoFields(message []byte, see func(field int, value []byte) error) error {
	return ProtoAll(message, func(field int, value []byte, _ uint64) error {
		if value == nil {
			return nil
		}
		return see(field, value)
	})
}

// ProtoAll calls see for each field of a message that holds bytes or a number: value is nil for a
// number. gpuadm does not use the module protobuf, which reads its own program's file at each
// start: the texts that it prints differ between programs on purpose.
// Source: https://protobuf.dev/programming-guides/encoding/
func ProtoAll(message []byte, see func(field int, value []byte, number uint64) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		field := tag >> 3
		if n <= 0 || field == 0 || field > 1<<29-1 {
			return errNoProto
		}
		message = message[n:]

		kind := tag & 7
		value, number, size := protoField(kind, message)
		if size <= 0 || size > len(message) {
			return errNoProto
		}
		message = message[size:]

		if kind == protoFixed64 || kind == protoFixed32 { // no message that gpuadm reads has one
			continue
		}
		if err := see(int(field), value, number); err != nil {
			return err
		}
	}
	return nil
}

// The types of fields.
const (
	protoVarint  = 0
	protoFixed64 = 1
	protoBytes   = 2
	protoFixed32 = 5
)

// protoField reads the field at the beginning of a message: its bytes or its number, and its size;
// size 0 or less if it is none. Groups belong to a syntax that CRI and the pods'
// resources never had.
func protoField(kind uint64, message []byte) (value []byte, number uint64, size int) {
	switch kind {
	case protoVarint:
		number, size = binary.Uvarint(message)
	case protoBytes:
		length, n := binary.Uvarint(message)
		if n <= 0 || length > uint64(len(message)-n) {
			return nil, 0, 0
		}
		size = n + int(length)
		value = message[n:size:size]
	case protoFixed64:
		size = 8
	case protoFixed32:
		size = 4
	}
	return value, number, size
}

var errNoProto = errors.New("cannot read the answer: it is not a message of protocol buffers")
