// SPDX-FileCopyrightText: The gpuadm authors
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

// ProtoAll calls see for each field of a message that holds bytes or a number: value is nil for a number. The module protobuf reads its
// own program's file at each start of it, to have no two programs agree on what a text looks like.
// Source: https://protobuf.dev/programming-guides/encoding/
func ProtoAll(message []byte, see func(field int, value []byte, number uint64) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return errNoProto
		}
		message = message[n:]
		var value []byte
		var number uint64
		size, known := 0, true
		switch tag & 7 {
		case 0:
			if number, size = binary.Uvarint(message); size <= 0 {
				return errNoProto
			}
		case 2:
			long, n := binary.Uvarint(message)
			if n <= 0 || long > uint64(len(message)-n) {
				return errNoProto
			}
			size = n + int(long)
			value = message[n:size:size]
		case 1:
			size, known = 8, false
		case 5:
			size, known = 4, false
		default: // groups are of a syntax that CRI and the pods' resources never had
			return errNoProto
		}
		if size > len(message) {
			return errNoProto
		}
		message = message[size:]
		if !known {
			continue
		}
		if err := see(int(tag>>3), value, number); err != nil {
			return err
		}
	}
	return nil
}

var errNoProto = errors.New("cannot read the answer: it is no message of protocol buffers")
