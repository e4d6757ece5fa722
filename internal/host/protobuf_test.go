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

// ProtoAll reads what protobuf's own module writes, and reads of a message that is cut anywhere
// what that module reads of it.
func TestProtoAll(t *testing.T) {
	tag := protowire.AppendTag
	m := protowire.AppendString(tag(nil, 1, protowire.BytesType), "text")
	m = protowire.AppendVarint(tag(m, 200, protowire.VarintType), 1<<63)
	m = protowire.AppendFixed64(tag(m, 3, protowire.Fixed64Type), 7)
	m = protowire.AppendFixed32(tag(m, 4, protowire.Fixed32Type), 7)
	m = protowire.AppendBytes(tag(m, 5, protowire.BytesType), nil)
	cases := [][]byte{
		{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, // a length of 2^64-1
		{0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, // a number of 70 bits
		{0x00, 0x00}, {0x0e}, {0x0f}, // field 0, kinds that are not defined
	}
	for n := range len(m) + 1 {
		cases = append(cases, m[:n])
	}
	for _, message := range cases {
		var want, got []string
		good := true
		for rest := message; len(rest) > 0 && good; {
			n, kind, size := protowire.ConsumeTag(rest)
			if good = size >= 0; !good {
				break
			}
			value := rest[size:]
			size = protowire.ConsumeFieldValue(n, kind, value)
			if good = size >= 0; !good {
				break
			}
			rest = value[size:]
			switch kind {
			case protowire.BytesType:
				b, _ := protowire.ConsumeBytes(value)
				want = append(want, fmt.Sprintf("%d %q 0", n, b))
			case protowire.VarintType:
				v, _ := protowire.ConsumeVarint(value)
				want = append(want, fmt.Sprintf("%d %q %d", n, "", v))
			}
		}
		err := host.ProtoAll(message, func(n int, value []byte, number uint64) error {
			got = append(got, fmt.Sprintf("%d %q %d", n, value, number))
			return nil
		})
		check.That(t, (err == nil) == good && slices.Equal(got, want), "%x: %q %v, want %q, good %v", message, got, err, want, good)
	}
}
