// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// newerTOML finds the first thing in a file that TOML 1.1 allows and 1.0 does not; at is -1 if there is none. The parser used here reads
// 1.1, as go-toml 2.4 does, which containerd has from 2.4 on. Sources: https://toml.io/en/v1.1.0 and its list of changes in
// https://github.com/toml-lang/toml/blob/main/CHANGELOG.md; go.mod of containerd v2.3.4 and v2.4.0-beta.0.
func newerTOML(src []byte) (at int, what string) {
	var open []byte // the brackets around a byte
	for i := 0; i < len(src); i++ {
		switch c := src[i]; c {
		case '#':
			if i += bytes.IndexByte(src[i:], '\n'); i < 0 || src[i] != '\n' {
				return -1, ""
			}
			i-- // the line break counts
		case '"', '\'':
			end, escape := stringEnd(src, i)
			if escape >= 0 {
				return escape, "the escape " + string(src[escape:escape+2])
			}
			i = end - 1
		case '{', '[':
			open = append(open, c)
		case '}', ']':
			open = open[:max(len(open)-1, 0)]
		case '\n':
			if len(open) > 0 && open[len(open)-1] == '{' {
				return i, "a line break within { }"
			}
		case ',':
			if rest := bytes.TrimLeft(src[i+1:], " \t"); len(open) > 0 && open[len(open)-1] == '{' && bytes.HasPrefix(rest, []byte("}")) {
				return i, "a comma before }"
			}
		case ':':
			if i >= 2 && clock(src[i-2:]) && (i < 3 || strings.IndexByte("tT =[,", src[i-3]) >= 0) {
				return i, "a time without seconds"
			}
		}
	}
	return -1, ""
}

// clock says whether a text begins with hours and minutes, and no seconds.
func clock(s []byte) bool {
	digit := func(i int) bool { return i < len(s) && s[i] >= '0' && s[i] <= '9' }
	return digit(0) && digit(1) && digit(3) && digit(4) && (len(s) < 6 || s[5] != ':')
}

// stringEnd returns where the string that begins at i ends, and the place of an escape in it that is new in TOML 1.1, -1 if none.
func stringEnd(src []byte, i int) (end, escape int) {
	quote, long := src[i], len(src) >= i+3 && src[i+1] == src[i] && src[i+2] == src[i]
	width := 1
	if long {
		width = 3
	}
	for j := i + width; j < len(src); j++ {
		switch {
		case src[j] == '\\' && quote == '"':
			if j+1 < len(src) && (src[j+1] == 'e' || src[j+1] == 'x') {
				return j, j
			}
			j++
		case src[j] == quote && (!long || bytes.HasPrefix(src[j:], bytes.Repeat([]byte{quote}, 3))):
			for j += width; long && j < len(src) && src[j] == quote; j++ { // quotes before the closing ones
			}
			return j, -1
		}
	}
	return len(src), -1
}

// checkNewer refuses what this daemon would not start with, and gpuadm's own parser takes.
func (f configFile) checkNewer(r criReader) error {
	at, what := newerTOML(f.data)
	if !r.known || r.newer || at < 0 {
		return nil
	}
	return &Refusal{
		Code: RefusedSyntax, File: f.path, Line: 1 + bytes.Count(f.data[:at], []byte("\n")),
		Reason: fmt.Sprintf("%s is new in TOML 1.1, and %s reads TOML 1.0", what, r.daemon),
		Fix:    "write it as TOML 1.0 has it: a table in { } on one line and without a comma at its end, times with seconds, \\u001b for \\e",
	}
}

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
