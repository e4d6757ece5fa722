// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	bin "encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/alloc"
)

// withDict is a stream of xz with a block that says that its dictionary has 2^12·2^(bits/2) bytes, or half as much again:
// https://tukaani.org/xz/xz-file-format.txt, 3.1 and 5.3.1.
func withDict(t *testing.T, stream []byte, bits byte) []byte {
	t.Helper()
	stream = bytes.Clone(stream)
	head := stream[12 : 12+4*(int(stream[12])+1)]
	at := bytes.Index(head, []byte{0x21, 1})
	if at < 0 {
		t.Fatal("no LZMA2 in the header of the block")
	}
	head[at+2] = bits
	bin.LittleEndian.PutUint32(head[len(head)-4:], crc32.ChecksumIEEE(head[:len(head)-4]))
	return stream
}

const (
	dict1MiB  = 16
	dict64MiB = 28
	dict2GiB  = 38
)

// TestPackedBombs: a small file that unpacks to a huge one, or asks for huge buffers wherever in it, is refused, and takes no more
// memory than a module does.
func TestPackedBombs(t *testing.T) {
	some := packed(t, ".xz", bytes.Repeat([]byte("nvidia "), 1000))
	zeros := make([]byte, 16<<20)
	for what, tt := range map[string]struct {
		ending string
		data   []byte
	}{
		"16 MiB of zeros in gzip":          {".gz", packed(t, ".gz", zeros)},
		"16 MiB of zeros in zstd":          {".zst", packed(t, ".zst", zeros)},
		"16 MiB of zeros in xz":            {".xz", packed(t, ".xz", zeros)},
		"a dictionary of 2 GiB":            {".xz", withDict(t, some, dict2GiB)},
		"one of 2 GiB in a later stream":   {".xz", append(withDict(t, some, dict1MiB), withDict(t, some, dict2GiB)...)},
		"100 streams with 64 MiB for each": {".xz", bytes.Repeat(withDict(t, some, dict64MiB), 100)},
	} {
		name := "/lib/modules/6.1.0/x.ko" + tt.ending
		alloc.Beside(t, unpackBuffers, unpackRatio, len(tt.data), func() {
			if _, err := ReadModule(files{name: string(tt.data)}, name); err == nil || !strings.HasPrefix(err.Error(), "cannot read module") {
				t.Errorf("%s: %v", what, err)
			}
		})
		if t.Failed() {
			t.Fatal(what)
		}
	}
}

const (
	unpackBuffers = 2*maxWindow + 16<<20
	unpackRatio   = 8 * maxRatio // a buffer that grows is copied
)
