// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/pairs"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestPairs asks what two specs do to each other, by the command line: test/pairs.
func TestPairs(t *testing.T) {
	pairs.Test(t, func(t testing.TB, n *simhost.Node, args ...string) (said pairs.Said) {
		var stdout, stderr bytes.Buffer
		e := env{
			stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, getenv: func(string) string { return "" }, root: true,
			open: func(string) (host.Host, error) { return n, nil }, read: os.ReadFile, told: func(line string) { said.Told = append(said.Told, line) },
		}
		said.Code = run(t.Context(), e, args)
		said.Out, said.Talk = stdout.String(), stderr.String()
		return said
	})
}
