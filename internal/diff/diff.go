// SPDX-License-Identifier: Apache-2.0

// Package diff shows what changes between two texts, without their secrets.
package diff

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/gpuadm/gpuadm/internal/mask"
)

// maxDiff is the size in bytes above which only sizes are shown.
const maxDiff = 64 << 10

// Texts shows what changes between two texts of a file, as the hunks of a unified diff, without
// secrets.
func Texts(name string, before, after []byte) string {
	if bytes.Equal(before, after) {
		return ""
	}
	if !isShown(before) || !isShown(after) {
		return fmt.Sprintf("(%d bytes become %d)\n", len(before), len(after))
	}

	d := diff.Diff("before", mask.File(name, before), "after", mask.File(name, after))
	if d == nil {
		return "(a masked value changes)\n"
	}

	_, hunks, _ := strings.Cut(string(d), "\n+++ after\n")
	return hunks
}

// isShown says whether a diff shows a file's content: a text, and not a large one.
func isShown(data []byte) bool { return len(data) <= maxDiff && utf8.Valid(data) }
