// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package diff shows what changes between two texts, without their secrets.
package diff

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"
)

// maxDiff is the size in bytes above which only sizes are shown.
const maxDiff = 64 << 10

// Texts shows what changes between two texts, as the hunks of a unified diff, with the values of keys that look
// like secrets masked.
func Texts(before, after []byte) string {
	if bytes.Equal(before, after) {
		return ""
	}
	if len(before) > maxDiff || len(after) > maxDiff || !utf8.Valid(before) || !utf8.Valid(after) {
		return fmt.Sprintf("(%d bytes become %d)\n", len(before), len(after))
	}
	d := diff.Diff("before", Mask(before), "after", Mask(after))
	if d == nil {
		return "(a masked value changes)\n"
	}
	_, hunks, _ := strings.Cut(string(d), "\n+++ after\n")
	return hunks
}
