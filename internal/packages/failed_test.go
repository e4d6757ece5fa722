// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Who holds a lock is said on one line that can be read.
func TestCommandOf(t *testing.T) {
	n := must.Get(simhost.New([]byte("-- proc/7/cmdline base64 --\nc2gALWMAZWNobyBhCgllY2hvIGIA\n-- proc/8/cmdline --\n" + strings.Repeat("x", 300) + "\n")))(t)
	for pid, want := range map[string]string{"7": " (sh -c echo a echo b)", "8": " (" + strings.Repeat("x", 120) + "…)", "9": ""} {
		if got := commandOf(n, pid); got != want {
			t.Errorf("%s: %q, want %q", pid, got, want)
		}
	}
}
