// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// wrong is what is wrong with a value, before it has a place, and how to fix it.
func wrong(fix, format string, args ...any) *trouble.Error {
	return &trouble.Error{What: fmt.Sprintf(format, args...), Try: []string{fix}}
}

// show quotes what a file says, so that a message can contain it: no control characters, no endless tails.
func show(text string) string {
	return strconv.Quote(clip(text))
}

func clip(text string) string {
	const most = 64
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}

// a puts the article before a type.
func a(kind string) string {
	switch kind {
	case TypeInt:
		return "an " + kind
	case TypeDevices:
		return kind
	}
	return "a " + kind
}

// choice is `one of "a", "b", "c"`.
func choice(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}
	return "one of " + strings.Join(quoted, ", ")
}

func header(section string) string {
	switch section {
	case "":
		return "at the top of the file"
	case "mig.gpu", "mig.gpu.placements":
		return "[[" + section + "]]"
	}
	return "[" + section + "]"
}
