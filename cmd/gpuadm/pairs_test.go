// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	"github.com/gpuadm/gpuadm/test/pairs"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestPairs asks what two specs do to each other, by the command line: test/pairs.
func TestPairs(t *testing.T) {
	pairs.Test(t, func(t testing.TB, n *simhost.Node, args ...string) (said pairs.Said) {
		var stdout, stderr bytes.Buffer
		e := envOn(n, &stdout)
		e.stderr, e.told = &stderr, func(line string) { said.Told = append(said.Told, line) }
		said.Code = run(t.Context(), e, args)
		said.Out, said.Talk = stdout.String(), stderr.String()
		return said
	})
}
