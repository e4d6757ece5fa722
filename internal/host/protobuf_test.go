// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
)

// wholeMessage has a field of each kind, as protobuf's own module writes it.
func wholeMessage() []byte {
	tag := protowire.AppendTag
	m := protowire.AppendString(tag(nil, 1, protowire.BytesType), "text")
	m = protowire.AppendVarint(tag(m, 200, protowire.VarintType), 1<<63)
	m = protowire.AppendFixed64(tag(m, 3, protowire.Fixed64Type), 7)
	m = protowire.AppendFixed32(tag(m, 4, protowire.Fixed32Type), 7)
	return protowire.AppendBytes(tag(m, 5, protowire.BytesType), nil)
}

// readByModule reads a message by protobuf's own module: its texts and numbers, up to the first field
// that is malformed.
func readByModule(message []byte) (fields []string, isGood bool) {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return fields, false
		}
		value := message[size:]
		size = protowire.ConsumeFieldValue(number, kind, value)
		if size < 0 {
			return fields, false
		}
		message = value[size:]

		switch kind {
		case protowire.BytesType:
			text, _ := protowire.ConsumeBytes(value)
			fields = append(fields, fmt.Sprintf("%d %q 0", number, text))
		case protowire.VarintType:
			n, _ := protowire.ConsumeVarint(value)
			fields = append(fields, fmt.Sprintf("%d %q %d", number, "", n))
		}
	}
	return fields, true
}

// TestProtoAll: ProtoAll reads what protobuf's own module writes, and reads of a message that is cut
// anywhere, or malformed, what that module reads of it.
func TestProtoAll(t *testing.T) {
	messages := [][]byte{
		{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, // a length of 2^64-1
		{0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, // a number of 70 bits
		{0x00, 0x00}, {0x0e}, {0x0f}, // field 0, kinds that are not defined
	}
	whole := wholeMessage()
	for n := range len(whole) + 1 {
		messages = append(messages, whole[:n])
	}

	for _, message := range messages {
		var got []string
		err := host.ProtoAll(message, func(field int, value []byte, number uint64) error {
			got = append(got, fmt.Sprintf("%d %q %d", field, value, number))
			return nil
		})

		want, isGood := readByModule(message)
		check.That(t, (err == nil) == isGood, "%x: %v, and the module reads all: %t", message, err, isGood)
		check.That(t, slices.Equal(got, want), "%x: %q, want %q", message, got, want)
	}
}
