// SPDX-License-Identifier: Apache-2.0

package gputable

import (
	"fmt"
	"strings"
)

// Rows are the rows of an embedded table: columns with tabs between, and comments that begin with
// #. A column that says "-" is "".
func Rows(file, text string, columns int) [][]string {
	var rows [][]string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		row := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(row) != columns {
			// The tables are embedded, and every test reads them.
			panic(fmt.Sprintf("internal error: %s: %d columns in %q", file, len(row), line))
		}
		for i, field := range row {
			if field == "-" {
				row[i] = ""
			}
		}

		rows = append(rows, row)
	}

	return rows
}
