// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/must"
)

// signedFile is KoFile with a signature behind its end: one of a module in a Debian kernel's package, which says who signed.
func signedFile(t *testing.T, path, version, record string) string {
	t.Helper()
	signature := must.Get(os.ReadFile("../internal/facts/testdata/modules/" + record))(t)
	head, body, _ := strings.Cut(KoFile(path, version, "Dual MIT/GPL", "6.8.0"), "\n")
	data := must.Get(base64.StdEncoding.DecodeString(strings.TrimSpace(body)))(t)
	size := binary.BigEndian.AppendUint32([]byte{0, 0, 2, 0, 0, 0, 0, 0}, uint32(len(signature)))
	data = bytes.Join([][]byte{data, signature, size, []byte("~Module signature appended~\n")}, nil)
	return head + "\n" + base64.StdEncoding.EncodeToString(data) + "\n"
}

const (
	signedA = "debian12-kernel-6.1.p7s"
	signedB = "debian12-kernel-6.12.p7s"
	updates = "lib/modules/6.8.0/updates/dkms/"
)

// secure is what machines trust of which an image is made, with the key that a module was signed with; "" for no key.
func secure(t *testing.T, record string) *facts.Trust {
	t.Helper()
	if record == "" {
		return &facts.Trust{SecureBoot: "on"}
	}
	m, err := facts.ReadModule(simulated(t, signedFile(t, "nvidia.ko", "1", record)), "/nvidia.ko")
	if err != nil || m.Signer == nil {
		t.Fatal(err)
	}
	return &facts.Trust{SecureBoot: "on", Build: m.Signer, Enrolled: []facts.Key{*m.Signer}}
}

// TestImageSignedBy: in an image for Secure Boot each module must be signed by the key that bake was given.
func TestImageSignedBy(t *testing.T) {
	tree := func(uvm string) string {
		return "-- sim.toml --\nlive = false\n-- var/lib/dkms/nvidia/580.95.05/6.8.0/x86_64/module/nvidia.ko --\n-- var/lib/dkms/nvidia/kernel-6.8.0-x86_64 link=580.95.05/6.8.0/x86_64 --\n" +
			"-- lib/modules/6.8.0/modules.dep --\nupdates/dkms/nvidia.ko:\nupdates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko\n" +
			signedFile(t, updates+"nvidia.ko", "580.95.05", signedA) + uvm
	}
	for _, x := range []struct{ name, uvm, key, problem string }{
		{"all", signedFile(t, updates+"nvidia-uvm.ko", "580.95.05", signedA), signedA, ""},
		{"by another", signedFile(t, updates+"nvidia-uvm.ko", "580.95.05", signedA), signedB, "it is signed by "},
		{"one by another", signedFile(t, updates+"nvidia-uvm.ko", "580.95.05", signedB), signedA, "nvidia-uvm.ko: it is signed by "},
		{"one not signed", KoFile(updates+"nvidia-uvm.ko", "580.95.05", "Dual MIT/GPL", "6.8.0"), signedA, "nvidia-uvm.ko: it is not signed"},
	} {
		n, k := simulated(t, tree(x.uvm)), kernelSide()
		k.Image = secure(t, x.key)
		_, state, err := k.built(n, "580.95.05", "6.8.0")
		if err != nil || !strings.HasPrefix(string(state), "installed") || (state == "installed") != (x.problem == "") || !strings.Contains(string(state), x.problem) {
			t.Errorf("%s: %q, %v", x.name, state, err)
		}
		if file, err := k.onDiskProven(n, "6.8.0"); err != nil || (file == "580.95.05 open") != (x.problem == "") {
			t.Errorf("%s: %q, %v", x.name, file, err)
		}
		if _, state, _ = Built(n, "580.95.05", "6.8.0"); state != "installed" {
			t.Errorf("%s: not for Secure Boot: %q", x.name, state)
		}
	}
}

// TestImageOfSignedPackages: of modules that packages bring any signature will do, as their kernel knows whose it is; none will not.
func TestImageOfSignedPackages(t *testing.T) {
	const dep = "-- sim.toml --\nlive = false\n-- lib/modules/6.8.0/modules.dep --\nupdates/dkms/nvidia.ko:\n"
	for file, is := range map[string]string{
		signedFile(t, updates+"nvidia.ko", "580.95.05", signedA):          "580.95.05 open",
		KoFile(updates+"nvidia.ko", "580.95.05", "Dual MIT/GPL", "6.8.0"): "580.95.05 open, it is not signed, and the kernel demands that",
	} {
		k, _ := Choice{Version: "580.95.05", Flavour: "open", Precompiled: true}.KernelSide(driver("580"), facts.Facts{Image: secure(t, signedB)})
		if state, err := k.onDiskProven(simulated(t, dep+file), "6.8.0"); err != nil || string(state) != is {
			t.Errorf("%q, want %q, %v", state, is, err)
		}
	}
}

// TestImageBesideSignedBy: a module that is built beside the driver's is built again where another key has signed it.
func TestImageBesideSignedBy(t *testing.T) {
	const dep = "-- sim.toml --\nlive = false\n-- usr/src/nvidia-fs-2.26.6/dkms.conf --\n-- lib/modules/6.8.0/modules.dep --\nupdates/dkms/nvidia.ko:\nupdates/dkms/nvidia-fs.ko:\n"
	n, k := simulated(t, dep+signedFile(t, updates+"nvidia.ko", "580.95.05", signedA)+signedFile(t, updates+"nvidia-fs.ko", "2.26.6", signedB)), kernelSide()
	for key, fits := range map[string]bool{signedA: false, signedB: true} {
		k.Image = secure(t, key)
		if _, state, err := k.builtBeside(n, storage, "6.8.0"); err != nil || (state == things.BesideFits) != fits {
			t.Errorf("%s: %q, %v", key, state, err)
		}
	}
}

// TestImageNeedsKey: without a key what DKMS builds is refused in an image for Secure Boot, and what a distribution has signed is not.
func TestImageNeedsKey(t *testing.T) {
	for _, x := range []struct {
		name, build string
		image       *facts.Trust
		refused     bool
	}{
		{"no Secure Boot", "dkms", nil, false},
		{"no key", "dkms", secure(t, ""), true},
		{"a key", "dkms", secure(t, signedA), false},
		{"signed by the distribution", "precompiled", secure(t, ""), false},
	} {
		k, known := Choice{Version: "580.95.05", Flavour: "open", Precompiled: x.build == "precompiled"}.KernelSide(driver("580"), facts.Facts{Image: x.image})
		wants, err := SettingsWants(k)
		if err != nil || !known {
			t.Fatal(err)
		}
		p := problems(t, wants, simulated(t, "-- sim.toml --\nlive = false\n"))
		if strings.Contains(p, "bake has no key to sign them with") != x.refused || (p != "") != x.refused {
			t.Errorf("%s: %q", x.name, p)
		}
	}
}

// TestFirstBootOfSignedImage: on a machine with Secure Boot nothing is to be built where modules lie that it trusts, though the key
// is not there; and a build of another version is refused.
func TestFirstBootOfSignedImage(t *testing.T) {
	module := "-- lib/modules/6.8.0/modules.dep --\nupdates/dkms/nvidia.ko:\n" + signedFile(t, updates+"nvidia.ko", "580.95.05", signedA)
	m := must.Get(facts.ReadModule(simulated(t, module), "/"+updates+"nvidia.ko"))(t)
	known := "-- proc/keys --\n0a1b2c3d I------     1 perm 1f030000     0     0 asymmetri " + m.Signer.Name + ": 0123456789abcdef: X509.rsa 01234567 []\n"
	for _, x := range []struct {
		name, archive, version string
		refused                bool
	}{
		{"trusted", module + known, "580.95.05", false},
		{"not trusted", module, "580.95.05", true},
		{"another version", module + known, "580.105.08", true},
	} {
		k := kernelSide()
		k.Version = x.version
		wants := must.Get(SettingsWants(k))(t)
		if p := problems(t, wants, simulated(t, secured+x.archive)); strings.Contains(p, "cannot use modules built here") != x.refused {
			t.Errorf("%s: %q", x.name, p)
		}
	}
}
