// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

func TestReplicas(t *testing.T) {
	for text, want := range map[string]int{"": 1, "time_slicing = 4": 4, "mps = 8": 8, "mps = 0": 1} {
		s := parse(t, node("format = 1\n[sharing]\n"+text+"\n"))
		check.Equal(t, s.Sharing.Replicas(), want, "%q:", text)
	}
}
