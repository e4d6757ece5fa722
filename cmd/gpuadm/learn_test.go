// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/pairs"
)

// TestLearns: modules that did not build are said by the next plan of the same driver on the same
// kernel, before it compiles, and by none of another driver; once they build, nothing is said.
func TestLearns(t *testing.T) {
	n := pairs.Machine(t)
	const version = "590.48.01"
	i := slices.IndexFunc(pairs.Specs, func(s struct{ Name, Text string }) bool {
		return s.Name == "590"
	})
	spec := pairs.Specs[i].Text
	said := func(code int, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		e := envOn(n, &out)
		e.stderr = &out
		is := run(t.Context(), e, args)
		must.That(t, is == code, "gpuadm %s: exit code %d, want %d\n%s", strings.Join(args, " "), is, code, out.String())
		return out.String()
	}

	const before = "did not build for kernel 6.8.0-88-generic on this machine before: "

	pairs.Write(t, n, "/etc/gpuadm/node.toml", "format = 1\n"+spec)
	pairs.Write(t, n, "/simulated-net/nobuild", version+"\n")
	check.That(t, !strings.Contains(said(0, "plan"), before), "it is said before it was tried")
	said(1, "apply")
	check.Has(t, said(0, "plan"), "driver "+version+" "+before, "the plan after a failure:")

	must.OK(t, n.Remove("/simulated-net/nobuild"))
	said(0, "apply")
	check.That(t, !strings.Contains(said(0, "plan"), before), "it is said of what has been built")
}
