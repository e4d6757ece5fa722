// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package toml

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestDiffLines(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	text := func() [][]byte {
		lines := make([][]byte, rng.IntN(12))
		for i := range lines {
			lines[i] = []byte{byte('a' + rng.IntN(4)), '\n'}
		}
		return lines
	}
	for range 5000 {
		a, b := text(), text()
		var out [][]byte
		at, edits := 0, 0
		for _, h := range DiffLines(a, b) {
			if h.a0 < at || h.a0 == h.a1 && h.b0 == h.b1 {
				t.Fatalf("bad hunk %v for %s %s", h, a, b)
			}
			out = append(append(out, a[at:h.a0]...), b[h.b0:h.b1]...)
			at = h.a1
			edits += h.a1 - h.a0 + h.b1 - h.b0
		}
		out = append(out, a[at:]...)
		if !bytes.Equal(bytes.Join(out, nil), bytes.Join(b, nil)) {
			t.Fatalf("%s -> %s gives %s", a, b, out)
		}
		if least := len(a) + len(b) - 2*common(a, b); edits != least {
			t.Fatalf("%s -> %s in %d edits, not %d", a, b, edits, least)
		}
	}
}

// common is how many lines two texts share in order, by the plain recursion.
func common(a, b [][]byte) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
	}
	for i := range a {
		for j := range b {
			if bytes.Equal(a[i], b[j]) {
				rows[i+1][j+1] = rows[i][j] + 1
			} else {
				rows[i+1][j+1] = max(rows[i][j+1], rows[i+1][j])
			}
		}
	}
	return rows[len(a)][len(b)]
}
