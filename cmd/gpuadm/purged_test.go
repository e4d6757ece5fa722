// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
	"github.com/gpuadm/gpuadm/test/sim/ubuntu"
)

// TestPurgedPartIsMissed: a library that gpuadm installed because the source has it, and that an
// operator purged, is missed until node.toml leaves it out; undo does not need it.
func TestPurgedPartIsMissed(t *testing.T) {
	const encode = "libnvidia-encode-580"
	n := must.Get(simhost.New(demoNode))(t)
	ubuntu.Install(n)
	type command struct {
		line string
		code int
		says []string
	}
	try := func(all ...command) {
		t.Helper()
		for _, c := range all {
			var out bytes.Buffer
			code := run(t.Context(), envOn(n, &out), strings.Fields(c.line))
			check.That(t, code == c.code, "%s: exit %d\n%s", c.line, code, &out)
			check.Says(t, out.String(), c.says...)
		}
	}

	purge := func() {
		t.Helper()
		must.Get(n.Do(t.Context(), "apt-get", "-y", "purge", encode))(t)
	}

	try(command{"apply", 0, nil}, command{"status", 0, []string{"Converged."}})
	purge()
	try(
		command{"status", exitPending, []string{encode, "1 change pending"}},
		command{"plan --exit-code", exitPending, []string{"package " + encode}},
		command{"apply", 0, []string{"package " + encode}},
		command{"status", 0, []string{"Converged."}},
	)

	purge()
	spec := string(must.Get(n.ReadFile("/etc/gpuadm/node.toml"))(t))
	without := strings.Replace(spec, "[driver]\n", "[driver]\nwithout = [\""+encode+"\"]\n", 1)
	plantFile(t, n, "/etc/gpuadm/node.toml", without)
	try(command{"status", 0, []string{"Converged."}})

	plantFile(t, n, "/etc/gpuadm/node.toml", spec)
	try(command{"undo --to all --yes", 0, nil})
}
