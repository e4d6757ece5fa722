// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"strconv"
	"strings"
)

// Defaults is the Spec of a file without sections.
func Defaults() Spec { return defaults(table()) }

func defaults(rows []row) Spec {
	var s Spec
	for _, r := range rows {
		if r.Section != "" && !strings.HasPrefix(r.Section, "mig.gpu") {
			setDefault(r.ref(&s), r.Default)
		}
	}

	return s
}

// setDefault sets a value to a row's Default.
func setDefault(ref any, written string) {
	switch to := ref.(type) {
	case *string:
		*to, _ = strconv.Unquote(written)
	case *int:
		*to, _ = strconv.Atoi(written)
	case *bool:
		*to = written == "true"
	case *Devices:
		to.All = true
	case *map[string]string:
		*to = map[string]string{}
	case *map[string]int:
		*to = map[string]int{}
	}
}
