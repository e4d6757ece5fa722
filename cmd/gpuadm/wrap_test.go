// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// TestWrap: text is broken between words, with the lines after the first indented; a word that is too long stays whole.
func TestWrap(t *testing.T) {
	for _, test := range []struct {
		text          string
		indent, width int
		want          string
	}{
		{"one two three", 0, 0, "one two three"},
		{"one two three", 0, 13, "one two three"},
		{"one two three", 0, 12, "one two\nthree"},
		{"one two three", 4, 12, "one two\n    three"},
		{"/etc/containerd/config.toml is new", 2, 10, "/etc/containerd/config.toml\n  is new"},
		{"× × ×", 0, 3, "× ×\n×"},
		{"", 3, 10, ""},
	} {
		if got := wrap(test.text, test.indent, test.width); got != test.want {
			t.Errorf("wrap(%q, %d, %d) = %q, want %q", test.text, test.indent, test.width, got, test.want)
		}
	}
}
