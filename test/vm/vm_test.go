// SPDX-License-Identifier: Apache-2.0

// Package vm_test boots a machine, emulated, on the kernel that gpuadm has had Debian's driver
// compiled for. In the lab's hosts no module can be loaded: their kernel is this machine's. Here
// modprobe and the kernel are real, only the GPU is missing, so the best that the module can say is
// that it found none.
package vm_test

import (
	"encoding/json"
	"flag"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// asked skips a test that was not asked for by name.
func asked(t *testing.T) {
	t.Helper()
	if run := flag.Lookup("test.run"); run == nil || !strings.Contains(run.Value.String(), "TestVM") {
		t.Skip("emulates a machine, so it runs only when asked for by name: -run TestVM")
	}
	if runtime.GOARCH != "amd64" {
		missing(t, "the lab's disks are of "+runtime.GOARCH+", and the emulated machine is an amd64")
	}
	if os.Getuid() != 0 {
		missing(t, "needs root, to lay the lab's disks over each other")
	}
}

// TestVM boots the kernel without Secure Boot, and where modules must be signed by a key it knows.
func TestVM(t *testing.T) {
	asked(t)
	m := makeImage(t)
	haveEmulator(t)
	t.Run("accepted", func(t *testing.T) { accepted(t, m, machine{t, boot(t, m, "")}) })
	t.Run("refused", func(t *testing.T) {
		refused(t, m, machine{t, boot(t, m, "module.sig_enforce=1")})
	})
}

// accepted: the kernel takes the module and its parameters, and the module looks for a GPU and
// finds none.
func accepted(t *testing.T, m image, is machine) {
	version := is.known(m, "N")
	is.says("modprobe", 1, "could not insert '", "': No such device")
	is.says("kernel-sees", 1, "finit_module(", `, "`+m.parameters+`", 0) = -1 ENODEV (No such device)`)
	is.says("kernel-said", 0, "NVRM: No NVIDIA GPU found.")
	for _, complaint := range []string{"Unknown symbol", "disagrees about version", "version magic", "unknown parameter", "Oops", "BUG:"} {
		is.saysNot("kernel-said", complaint)
	}
	is.says("gpuadm-load", 1, "found: nothing, on disk "+version+" open", "it finds no GPU that it supports", "No such device")
	is.says("h100-comes", 1, "No such device")
	is.says("h100-comes-gpuadm", 1, "No such device")
	is.saysNot("modules", "nouveau")
	is.says("modules-unguarded", 0, "nouveau ") // or it could not have been kept away
	// Out of tree and signed by a stranger; neither proprietary (1) nor forced (2).
	// Source: Documentation/admin-guide/tainted-kernels.rst in the kernel's tree.
	if is.number("tainted") != 0 || is.number("tainted-then")&^(1<<12|1<<13) != 0 || is.number("tainted-then") == 0 {
		t.Errorf("the kernel is tainted: %d, then %d", is.number("tainted"), is.number("tainted-then"))
	}
}

// refused: dkms has made the key it signs with, and this kernel has never heard of it.
func refused(t *testing.T, m image, is machine) {
	is.known(m, "Y")
	is.says("modprobe", 1, "': Key was rejected by service")
	is.says("kernel-sees", 1, "= -1 EKEYREJECTED (Key was rejected by service)")
	is.says("kernel-said", 0, "Loading of module with unavailable key is rejected")
	is.saysNot("kernel-said", "NVRM:")
	is.says("gpuadm-load", 1, "the kernel does not trust the key that signed it", "mokutil --import")
	is.saysNot("modules", "nvidia")
	if is.number("tainted-then") != 0 {
		t.Errorf("the kernel is tainted: %d", is.number("tainted-then"))
	}
}

// machine is a machine that has answered.
type machine struct {
	t   *testing.T
	has map[string]answer
}

// known wants gpuadm to know what it runs on, and that the module for this kernel is there and not
// loaded. It returns the module's version.
func (m machine) known(i image, enforced string) string {
	m.t.Helper()
	m.says("kernel", 0, i.kernel+"\n")
	var f facts.Facts
	err := json.Unmarshal([]byte(m.has["facts"].text), &f)
	must.That(m.t, err == nil, "facts: %v: %q", err, m.has["facts"].text)
	k, _ := f.Modules.Of(i.kernel)
	must.That(m.t, f.Kernel.Running == i.kernel && k.Nvidia != nil && strings.HasPrefix(k.Nvidia.Vermagic, i.kernel+" ") && k.Problem == "",
		"runs %q, which has %+v: %+v", f.Kernel.Running, k, k.Nvidia)
	check.That(m.t, f.Modules.Version == "" && len(f.GPUs) == 0, "nothing was loaded when gpuadm looked, and it says: %q, GPUs %v", f.Modules.Version, f.GPUs)
	check.That(m.t, f.NoDriver == "the kernel module nvidia is not loaded", "there is no driver because: %q", f.NoDriver)
	if is := f.Modules.Trust; is.Enforced != enforced || is.Lockdown != "none" || is.Demands() != (enforced == "Y") || is.Trusts(k.Nvidia.Signer) {
		m.t.Errorf("trust: %+v, demands %v", is, is.Demands())
	}
	return k.Nvidia.Version
}

func (m machine) says(name string, code int, parts ...string) {
	m.t.Helper()
	a := m.has[name]
	for _, part := range parts {
		check.That(m.t, a.code == code && strings.Contains(a.text, part), "%s: exit code %d, want %d; want %q in:\n%s", name, a.code, code, part, a.text)
	}
}

func (m machine) saysNot(name, part string) {
	m.t.Helper()
	a, answered := m.has[name]
	check.That(m.t, answered && !strings.Contains(a.text, part), "%s: do not want %q in:\n%s", name, part, a.text)
}

func (m machine) number(name string) int {
	m.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(m.has[name].text))
	check.That(m.t, err == nil, "%s: %v", name, err)
	return n
}
