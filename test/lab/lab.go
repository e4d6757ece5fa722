// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

// Package lab boots disposable Linux hosts with a real systemd and a real containerd, for tests that need a whole
// machine: a container started by systemd-nspawn on a throw-away layer over a cached root filesystem. A host is there
// in about a second, has eight simulated GPUs on its PCI bus, can be rebooted and can lose its power.
//
//	func TestLabSomething(t *testing.T) {
//		h := lab.Boot(t, lab.Options{Dist: "trixie", Containerd: "2.4", GPUs: 8})
//		h.Put("/etc/gpuadm/node.toml", spec, 0o644)
//		h.Must("gpuadm", "apply")
//		h.Reboot()
//		…
//	}
//
// What it needs is put in place once by Setup, or by hand:
//
//	go run ./test/lab/cmd/lab setup
//
// The lab needs root. Its tests boot machines, so they run only when asked for by name: go test ./test/lab -run TestLab.
// KEEP=1 leaves the hosts running and prints how to enter them.
package lab

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Dists are the distributions a host can have: Debian 12 and 13.
func Dists() []string { return []string{"bookworm", "trixie"} }

// Engines are the containerds that can be put in the place of the distribution's; names of test/containerd/parts.
func Engines() []string { return []string{"2.1", "2.4"} }

// Options say what host to boot.
type Options struct {
	// Dist is one of Dists.
	Dist string
	// Containerd is one of Engines, or "" for the distribution's own package: 1.6 in bookworm, 1.7 in trixie.
	Containerd string
	// GPUs is how many NVIDIA H100 are on the host's PCI bus, beside what any machine has there.
	GPUs int
}

// String is what people call such a host: "trixie" or "trixie with containerd 2.4".
func (o Options) String() string {
	if o.Containerd == "" {
		return o.Dist
	}
	return o.Dist + " with containerd " + o.Containerd
}

// SetupCommand puts in place what the lab needs.
const SetupCommand = "go run ./test/lab/cmd/lab setup"

// errMissing is something the lab needs and this machine does not have: a test is skipped for it.
type errMissing struct{ what string }

func (e errMissing) Error() string { return e.what + "; to get all it needs: " + SetupCommand }

// CacheDir is the folder of root filesystems and hosts: $GPUADM_TEST_LAB, or gpuadm-test/lab in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("GPUADM_TEST_LAB"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("cannot resolve GPUADM_TEST_LAB: %w", err)
		}
		return abs, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cannot find the user's cache folder: %w", err)
	}
	return filepath.Join(dir, "gpuadm-test", "lab"), nil
}

// Boot boots a fresh host and takes it down when the test ends. It skips the test where the machine lacks what the lab
// needs, and fails it there if CI=true.
func Boot(t testing.TB, o Options) *Host {
	t.Helper()
	if run := flag.Lookup("test.run"); run == nil || !strings.Contains(run.Value.String(), "TestLab") {
		t.Skip("boots a machine, so it runs only when asked for by name: -run TestLab")
	}
	m, err := Start(t.Context(), o)
	if missing := (errMissing{}); errors.As(err, &missing) {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	h := &Host{Machine: m, t: t}
	t.Cleanup(func() {
		if os.Getenv("KEEP") == "1" {
			if err := m.Keep(); err != nil {
				t.Errorf("cannot keep the host: %v", err)
				return
			}
			t.Logf("kept %s: to enter it\n\tgo run ./test/lab/cmd/lab shell %s\nto end it\n\tgo run ./test/lab/cmd/lab down %[2]s", o, m.Name)
			return
		}
		if t.Failed() {
			t.Logf("what the console of %s said last:\n%s", o, m.Console())
		}
		if err := m.Down(); err != nil {
			t.Error(err)
		}
	})
	return h
}
