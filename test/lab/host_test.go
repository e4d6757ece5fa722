// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"hash/fnv"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/lab"
)

// each runs a test on each distribution, with its own containerd and with others. With engines only the oldest pair and the newest
// run for each change; make nightly runs all.
func each(t *testing.T, engines []string, test func(*testing.T, lab.Options)) {
	run(t, engines, func(string) bool { return true }, test)
}

// either runs one case of many on one of the distributions, always the same for a case; make nightly runs it on all.
func either(t *testing.T, test func(*testing.T, lab.Options)) {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(t.Name()))
	chosen := lab.Dists()[int(sum.Sum32()%uint32(len(lab.Dists())))]
	run(t, nil, func(dist string) bool { return dist == chosen }, test)
}

func run(t *testing.T, engines []string, on func(dist string) bool, test func(*testing.T, lab.Options)) {
	all, last := os.Getenv("LAB_ALL") != "", len(lab.Dists())-1
	for i, dist := range lab.Dists() {
		for j, engine := range append([]string{""}, engines...) {
			pair := len(engines) == 0 || i == 0 && j == 0 || i == last && j == len(engines)
			if !all && !(pair && on(dist)) {
				continue
			}
			o := lab.Options{Dist: dist, Containerd: engine, GPUs: 8}
			t.Run(strings.ReplaceAll(o.String(), " ", "-"), func(t *testing.T) { test(t, o) })
		}
	}
}

// TestLabHost: a host is a machine: it boots, runs programs and containers, reboots, and survives a power loss.
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
		if out := h.Must("ctr", "version"); strings.Count(out, "Version:  "+want+".")+strings.Count(out, "Version:  v"+want+".") != 2 {
			t.Errorf("ctr version, want client and server %s:\n%s", want, out)
		}
		facts := h.Must("gpuadm", "facts")
		for _, want := range []string{"8 × H100", "containerd " + want + "."} {
			if !strings.Contains(facts, want) {
				t.Errorf("gpuadm facts does not say %q: %s", want, facts)
			}
		}
		if c := h.ContainerRun("one"); !c.Runs() {
			t.Error("the container does not run")
		}
		if strings.Contains(h.Journal("containerd.service"), "level=fatal") {
			t.Errorf("containerd:\n%s", h.Journal("containerd.service"))
		}
	})
}

// TestLabHostTree: a tree tells of every change, and of a file written with what it held.
func TestLabHostTree(t *testing.T) {
	t.Parallel()
	h := lab.Boot(t, lab.Options{Dist: "bookworm"})
	look := func() lab.Tree { return h.Tree([]string{"/etc", "/usr", "/var"}) }
	began := time.Now()
	before := look()
	t.Logf("%d entries in %s", len(before), time.Since(began).Round(10*time.Millisecond))
	if diff := before.Touched(look()); diff != "" {
		t.Errorf("nothing was touched, but\n%s", diff)
	}
	h.Must("cp", "/etc/fstab", "/etc/hosts.new")
	h.Must("chmod", "600", "/usr/bin/less")
	h.Must("dd", "if=/etc/hostname", "of=/etc/hostname", "conv=notrunc")
	after := look()
	if d := before.Diff(after); strings.Count(d, "\n") != 2 || !strings.Contains(d, "+ /etc/hosts.new ") || !strings.Contains(d, "~ /usr/bin/less ") {
		t.Errorf("diff:\n%s", d)
	}
	if d := before.Touched(after); !strings.Contains(d, "~ /etc/hostname ") {
		t.Errorf("touched:\n%s", d)
	}
}
