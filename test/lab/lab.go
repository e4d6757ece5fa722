// SPDX-License-Identifier: Apache-2.0

// Package lab boots disposable Linux hosts with a real systemd and a real containerd, for tests
// that need a whole machine: a container started by systemd-nspawn on a throw-away layer over a
// cached root filesystem. A host is there in about a second, has eight simulated GPUs on its PCI
// bus, can be rebooted and can lose its power.
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
// The lab needs root. Its tests boot machines, so they run only when asked for by name: go test
// ./test/lab -run TestLab. KEEP=1 leaves the hosts running and prints how to enter them.
package lab

import (
	"errors"
	"flag"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// Dists are the distributions a host can have: Debian 12 and 13.
func Dists() []string { return []string{"bookworm", "trixie"} }

// Engines are the containerds that can be put in the place of the distribution's; names of
// test/containerd/parts.
func Engines() []string { return []string{"2.1", "2.4"} }

// RHELish is a host that dnf and rpm manage, and that says it is RHEL 9.4: a Debian 13 below, with
// Debian's dnf 4.
const RHELish = "rhelish"

// Options say what host to boot.
type Options struct {
	// Dist is one of Dists, or RHELish.
	Dist string
	// Containerd is one of Engines, or "" for the distribution's own package: 1.6 in bookworm, 1.7
	// in trixie.
	Containerd string
	// GPUs is how many NVIDIA H100 are on the host's PCI bus, beside what any machine has there.
	GPUs int
	// Kind is the kind of the GPUs, if they are not H100: see functions.
	Kind string
	// Repos is a folder of this machine that the host has at /srv/repo, read-only: see package
	// repos. "" for none.
	Repos string
	// Headers says that the host, one of Dists, has a compiler, dkms, and the headers of a kernel
	// that does not run: Debian's own.
	Headers bool
	// Kernel says that the disk has Debian's kernel, with all that Headers has, and cloud-init: for
	// a machine that boots it.
	Kernel bool
	// CloudInit says that the host, a trixie, has cloud-init: it does nothing without user data in
	// SeedDir.
	CloudInit bool
	// Over is a folder of the cache that Machine.Save filled: an earlier disk of a host of this
	// Dist. "" for none.
	Over string
	// Name is what the host calls itself; "" for "node".
	Name string
	// Wire is the network it is attached to; nil for none.
	Wire *Wire
	// Docker says that the host, a trixie, has Debian's Docker, which runs.
	Docker bool
	// Kubelet says that the host, one of Dists, has what kubelet needs: plugins for the pods'
	// network, and a containerd that knows PauseImage. Kubelet itself is one of Files, and is not
	// started.
	Kubelet bool
	// Waits is a unit that may still be starting when the host counts as booted; "" for none.
	Waits string
	// SSH says that the host, a bookworm, has an SSH server, which runs, a client, and sudo.
	SSH bool
	// Disk says that what the host writes lies on a file system of its own, of which a test can take
	// a Picture at each moment: what a power cut leaves.
	Disk bool
	// Files are files of this machine that the host has, read-only, by their names in the host.
	Files map[string]string
}

// String is what people call such a host: "trixie" or "trixie with containerd 2.4".
func (o Options) String() string {
	name := o.Dist
	if o.Containerd != "" {
		name += " with containerd " + o.Containerd
	}
	if o.Headers {
		name += " with headers"
	}
	return name
}

// SetupCommand puts in place what the lab needs.
const SetupCommand = "go run ./test/lab/cmd/lab setup"

// errMissing is something the lab needs and this machine does not have: a test is skipped for it.
type errMissing struct{ what string }

func (e errMissing) Error() string {
	return e.what + "; to get all it needs: " + SetupCommand
}

// Source is the source tree that this process runs in: tests run in their package's folder,
// commands mostly at its top.
func Source() string {
	dir := "."
	for range 5 {
		if _, err := os.Stat(filepath.Join(dir, "test", "lab", "lab.go")); err == nil {
			return dir
		}
		dir = filepath.Join(dir, "..")
	}

	return "." // where the caller then says that a part is missing
}

// Asked skips a test of the lab that was not asked for by name.
func Asked(t testing.TB) {
	t.Helper()
	run := flag.Lookup("test.run")
	for _, kind := range []string{"TestLab", "TestSlow", "TestBench", "TestMetal"} {
		if run != nil && strings.Contains(run.Value.String(), kind) {
			return
		}
	}

	t.Skip("boots a machine, so it runs only when asked for by name: -run TestLab, TestSlow, TestBench or TestMetal")
}

// Nightly skips a test or a case of one, unless the whole lab runs or it is asked for by its whole
// name: other tests show its kind.
func Nightly(t testing.TB) {
	t.Helper()
	run := flag.Lookup("test.run")
	asked := run != nil && strings.Contains(run.Value.String(), t.Name())
	if !check.All() && !asked {
		t.Skip("make nightly runs it; alone: go test ./test/lab -run '" + t.Name() + "$'")
	}
}

// DistsFor is one distribution, always the same for a test; all if the whole lab runs.
func DistsFor(t testing.TB) []string {
	if check.All() {
		return Dists()
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(t.Name()))
	i := int(sum.Sum32() % uint32(len(Dists())))
	return Dists()[i : i+1]
}

// Have ends a test for an error: it is skipped where the machine lacks what the lab needs, unless
// CI=true, and else fails.
func Have(t testing.TB, err error) {
	t.Helper()
	if missing := (errMissing{}); errors.As(err, &missing) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	must.OK(t, err)
}

// Boot boots a fresh host and takes it down when the test ends. It skips the test where the machine
// lacks what the lab needs, and fails it there if CI=true.
func Boot(t testing.TB, o Options) *Host {
	t.Helper()
	Asked(t)
	m, err := Start(t.Context(), o)
	Have(t, err)
	t.Cleanup(func() { end(t, m) })
	return &Host{Machine: m, t: t}
}

// end takes a host down at the end of a test, or keeps it with KEEP=1.
func end(t testing.TB, m *Machine) {
	if os.Getenv("KEEP") == "1" {
		if err := m.Keep(); err != nil {
			t.Errorf("cannot keep the host: %v", err)
			return
		}
		t.Logf("kept %s: to enter it\n\tgo run ./test/lab/cmd/lab shell %s\nto end it\n\tgo run ./test/lab/cmd/lab down %[2]s", m.Options, m.Name)
		return
	}

	if t.Failed() {
		t.Logf("what the console of %s said last:\n%s", m.Options, m.Console())
	}
	check.OK(t, m.Down())
}
