// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestEnableInBeside: another process has written a line above gpuadm's marks. Without it the file is
// the one from before gpuadm's edit, also where that has no line break at its end.
func TestEnableInBeside(t *testing.T) {
	const theirs = "# foreign\n"
	for _, c := range []struct{ head, replaced, below string }{
		{"[a]\n", "enabled=1\n", ""},
		{"[a]\n", "enabled=1", ""},
		{"[a]\r\n", "enabled=1\r\n", ""},
		{"[a]\n", "enabled=1\n", "x=1"},
	} {
		before := c.head + c.replaced + c.below
		after := c.head + Replacing(c.replaced, "enabled=0") + c.below
		rest, left, err := enableIn([]byte(before), []byte(after), []byte(theirs+after))
		isExact := err == nil && left == nil && string(rest) == theirs+before
		check.That(t, isExact, "of %q it left %q, %v, %v", before, rest, left, err)
	}
}
