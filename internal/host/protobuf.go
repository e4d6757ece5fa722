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
// number. gpuadm does not use the module protobuf, which reads its own program's file at each start:
// the texts that it prints differ between programs on purpose.
// Source: https://protobuf.dev/programming-guides/encoding/
func ProtoAll(message []byte, see func(field int, value []byte, number uint64) error) error {
	const varint, fixed64, bytes, fixed32 = 0, 1, 2, 5 // the types of fields
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		field := tag >> 3
		if n <= 0 || field == 0 || field > 1<<29-1 {
			return errNoProto
		}
		message = message[n:]

		var value []byte
		var number uint64
		size := 0
		kind := tag & 7
		switch kind {
		case varint:
			number, size = binary.Uvarint(message)
			if size <= 0 {
				return errNoProto
			}
		case bytes:
			length, n := binary.Uvarint(message)
			if n <= 0 || length > uint64(len(message)-n) {
				return errNoProto
			}
			size = n + int(length)
			value = message[n:size:size]
		case fixed64:
			size = 8
		case fixed32:
			size = 4
		default: // groups belong to a syntax that CRI and the pods' resources never had
			return errNoProto
		}
		if size > len(message) {
			return errNoProto
		}
		message = message[size:]

		if kind == fixed64 || kind == fixed32 { // no message that gpuadm reads has one
			continue
		}
		if err := see(int(field), value, number); err != nil {
			return err
		}
	}
	return nil
}

var errNoProto = errors.New("cannot read the answer: it is not a message of protocol buffers")
