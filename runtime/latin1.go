// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// notUTF8 refuses a file with other bytes, as comments in Latin-1 have them.
func notUTF8(f File) *Refusal {
	at := 0
	for at < len(f.Data) {
		r, size := utf8.DecodeRune(f.Data[at:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	return &Refusal{
		Code: RefusedSyntax, File: f.Path, Line: 1 + bytes.Count(f.Data[:at], []byte("\n")),
		Reason: fmt.Sprintf("byte 0x%X is no UTF-8, as TOML wants it, also in comments; containerd 1.x reads it all the same, 2.x does not", f.Data[at]),
		Fix:    fmt.Sprintf("if it is Latin-1: iconv -f latin1 -t utf-8 -o %s.new %[1]s && mv %[1]s.new %[1]s", f.Path),
	}
}
