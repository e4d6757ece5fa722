// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package instance

import "strings"

// EachType hands out all types to the tests outside.
func EachType(do func(cloud, name string, t Type)) {
	for _, row := range knownTypes() {
		for name := range strings.FieldsSeq(row.names) {
			t, _ := TypeOf(row.cloud, name)
			do(row.cloud, name, t)
		}
	}
}
