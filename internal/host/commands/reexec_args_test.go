// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// The added flags override the old process's arguments, and are read as flags.
func TestWith(t *testing.T) {
	for argv, want := range map[string]string{
		"gpuadm apply --deadline 5m":    "gpuadm apply --deadline 5m --deadline=9s",
		"gpuadm apply --deadline 5m --": "gpuadm apply --deadline 5m --deadline=9s --",
	} {
		before := strings.Fields(argv)
		got := addFlags(before, []string{"--deadline=9s"})
		check.That(t, slices.Equal(got, strings.Fields(want)) && strings.Join(before, " ") == argv, "%s: %v, want %s", argv, got, want)
	}
}
