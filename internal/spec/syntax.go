// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package spec

import "strings"

func boolText(word string) string {
	switch strings.ToLower(word) {
	case "true", "yes", "on", "1":
		return "true"
	}
	return "false"
}

// syntax turns the parser's error at an offset into a finding.
func (b *builder) syntax(at int, message string) *finding {
	fix := `write key = value, with text in "quotes"`
	for _, known := range [][2]string{
		{"already", "keep one of the two"},
		{"defined", "keep one of the two"},
		{"cannot have new lines", "close the quotes on the same line"},
		{"escape", `write \\ for a backslash, or put the text in 'single quotes'`},
		{"array", "put a comma between the elements, or write the missing bracket"},
		{"inline table", "put a comma between the elements, or write the missing bracket"},
		{"table name", "write the section's name in brackets, on a line of its own: [driver]"},
		{"expected '='", "write = behind the key"},
		{"control character", "take the invisible character out"},
	} {
		if strings.Contains(message, known[0]) {
			fix = known[1]
			break
		}
	}
	return wrong(fix, "invalid TOML: %s", message)
}
