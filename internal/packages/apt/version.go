// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"strings"

	version "github.com/knqyf263/go-deb-version"
)

// Compare orders versions as dpkg does: deb-version(7). What is no version of Debian's comes before all that are, as text.
func (apt) Compare(a, b string) int {
	x, errA := version.NewVersion(a)
	y, errB := version.NewVersion(b)
	switch {
	case errA == nil && errB == nil:
		return x.Compare(y)
	case errA == nil:
		return 1
	case errB == nil:
		return -1
	}
	return strings.Compare(a, b)
}
