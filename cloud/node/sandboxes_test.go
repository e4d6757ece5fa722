// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/alloc"
)

func FuzzSandboxes(f *testing.F) {
	f.Add([]byte{0x0a, 0x02, 0x12, 0x00})
	f.Fuzz(func(t *testing.T, data []byte) {
		var pods []string
		var err error
		alloc.Most(t, 200, len(data), func() { pods, err = sandboxes(data) })
		for _, p := range pods {
			if err == nil && strings.ContainsAny(p, "\n\r") {
				t.Errorf("%q", p)
			}
		}
	})
}
