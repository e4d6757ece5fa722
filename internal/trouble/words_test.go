// SPDX-License-Identifier: Apache-2.0

package trouble

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestEither: ways out that say "or" themselves do not say it twice.
func TestEither(t *testing.T) {
	for want, ways := range map[string][]string{
		"":                         nil,
		"write a":                  {"write a"},
		"write a; or write b":      {"write a", "write b"},
		"write a; or take it out":  {"write a", "or take it out"},
		"write a; or b; or orders": {"write a", "or b", "orders"},
	} {
		check.Equal(t, Either(ways), want, "%q:", ways)
	}
}
