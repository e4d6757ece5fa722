// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package toml

import "bytes"

// SplitLines cuts after each line break.
func SplitLines(b []byte) [][]byte {
	lines := bytes.SplitAfter(b, []byte("\n"))
	if len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// JoinLines ends every line but the last: the former last line may be further up now.
func JoinLines(lines [][]byte, eol string) []byte {
	for i, l := range lines {
		if i < len(lines)-1 && !bytes.HasSuffix(l, []byte("\n")) {
			if eol == "" {
				eol = "\n"
			}
			lines[i] = append(l[:len(l):len(l)], eol...)
		}
	}
	return bytes.Join(lines, nil)
}
