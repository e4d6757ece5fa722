// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"strings"
)

// head keeps the first bytes written to it and reports once when there are more.
type head struct {
	buf  bytes.Buffer
	max  int
	full func()
}

func (h *head) Write(p []byte) (int, error) {
	keep := min(len(p), h.max-h.buf.Len())
	h.buf.Write(p[:keep])
	if keep < len(p) && h.full != nil {
		h.full()
		h.full = nil
	}
	return len(p), nil
}

// Tail keeps the last whole lines written to it, as far as they fit.
type Tail struct {
	buf []byte
	cut bool
}

func (t *Tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - maxStderr; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.cut = true
	}
	return len(p), nil
}

func (t *Tail) String() string {
	text := t.buf
	if nl := bytes.IndexByte(text, '\n'); t.cut && nl >= 0 && nl < len(text)-1 {
		text = text[nl+1:]
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(text), "?"))
}
