// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
)

// each runs a test on each distribution, with its own containerd and with others. With engines only
// the oldest pair and the newest run for each change; make nightly runs all.
func each(t *testing.T, engines []string, test func(*testing.T, lab.Options)) {
	run(t, engines, func(string) bool { return true }, test)
}

// either runs one case of many on one of the distributions, always the same for a case; make
// nightly runs it on all.
func either(t *testing.T, test func(*testing.T, lab.Options), engines ...string) {
	chosen := lab.DistsFor(t)
	run(t, engines, func(dist string) bool { return slices.Contains(chosen, dist) }, test)
}

func run(t *testing.T, engines []string, on func(dist string) bool, test func(*testing.T, lab.Options)) {
	last := len(lab.Dists()) - 1
	for i, dist := range lab.Dists() {
		for j, engine := range append([]string{""}, engines...) {
			pair := len(engines) == 0 || i == 0 && j == 0 || i == last && j == len(engines)
			if !check.All() && !(pair && on(dist)) {
				continue
			}
			o := lab.Options{Dist: dist, Containerd: engine, GPUs: 8}
			t.Run(strings.ReplaceAll(o.String(), " ", "-"), func(t *testing.T) { test(t, o) })
		}
	}
}

// TestLabHost: a host is a machine: it boots, runs programs and containers, reboots, and survives a
// power loss.
func TestLabHost(t *testing.T) {
	t.Parallel()
	each(t, lab.Engines(), func(t *testing.T, o lab.Options) {
		began := time.Now()
		h := lab.Boot(t, o)
		t.Logf("up after %s", time.Since(began).Round(10*time.Millisecond))
		if state := h.Running(); state != "running" {
			t.Errorf("systemd is %s: %s", state, h.Must("systemctl", "--failed", "--no-legend"))
		}
		want := o.Containerd
		if want == "" {
			want = map[string]string{"bookworm": "1.6", "trixie": "1.7"}[o.Dist]
		}
		out := h.Must("ctr", "version")
		check.That(t, strings.Count(out, "Version:  "+want+".")+strings.Count(out, "Version:  v"+want+".") == 2, "ctr version, want client and server %s:\n%s", want, out)
		facts := h.Must("gpuadm", "facts")
		check.Says(t, facts, "8 × H100", "containerd "+want+".")
		check.That(t, h.ContainerRun("one").Runs(), "the container does not run")
		if strings.Contains(h.Journal("containerd.service"), "level=fatal") {
			t.Errorf("containerd:\n%s", h.Journal("containerd.service"))
		}
	})
}
