// SPDX-License-Identifier: Apache-2.0

package modules

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/kmodule"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestModprobeConf(t *testing.T) {
	got, err := ModprobeConf(map[string]string{"NVreg_B": "1", "NVreg_A": "a=1; b=2", "NVreg_C": "", "NVreg_D": "0x1,0x2"})
	want := "# Written by gpuadm, rewritten at each apply.\nblacklist nouveau\noptions nouveau modeset=0\nblacklist nova_core\nblacklist nova_drm\n" +
		"options nvidia NVreg_A=\"a=1; b=2\"\noptions nvidia NVreg_B=1\noptions nvidia NVreg_C=\"\"\noptions nvidia NVreg_D=0x1,0x2\n"
	check.That(t, err == nil && string(got) == want, "%v\n%s", err, got)
	for name, value := range map[string]string{"NVreg_A": "x\ninstall nvidia /bin/sh", "NVreg_B": `a" b="c`, "a b": "1", "": "1", "NVreg_C": `x\`, "NVreg_D": "\x7f", "NVreg_E": "ü", "x\ny": ""} {
		_, err := ModprobeConf(map[string]string{name: value})
		told := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &told) && len(told.Try) > 0, "%q=%q: %v", name, value, err)
	}
}

// FuzzModprobeConf: whatever the spec says, each line is one of the six forms, and nothing is left
// unquoted.
func FuzzModprobeConf(f *testing.F) {
	f.Add("NVreg_X", "1")
	f.Add("NVreg_X", "a b\"\n")
	f.Fuzz(func(t *testing.T, name, value string) {
		out, err := ModprobeConf(map[string]string{name: value})
		if err != nil {
			return
		}
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if len(lines) != 6 || !strings.HasPrefix(lines[5], "options nvidia "+name+"=") || strings.Count(lines[5], `"`)%2 != 0 || strings.Count(lines[5], `"`) > 2 {
			t.Errorf("%q=%q gives %q", name, value, lines)
		}
	})
}

// FuzzModulesLoad compares the check of a module's name with the regular expression that it says
// the same as.
func FuzzModulesLoad(f *testing.F) {
	module := regexp.MustCompile(`^[a-z0-9_-]+$`)
	for _, name := range []string{"", "nvidia-uvm", "nvidia_uvm\n", "Nvidia"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if _, err := modulesLoad([]string{name}); (err == nil) != module.MatchString(name) {
			t.Errorf("module %q: %v", name, err)
		}
	})
}

func TestBuilt(t *testing.T) {
	const tree = "-- var/lib/dkms/nvidia/580.95.05/6.8.0/x86_64/module/nvidia.ko --\n-- var/lib/dkms/nvidia/kernel-6.8.0-x86_64 link=580.95.05/6.8.0/x86_64 --\n" +
		"-- lib/modules/6.8.0/modules.dep --\nupdates/dkms/nvidia.ko:\n"
	const ko = "lib/modules/6.8.0/updates/dkms/nvidia.ko"
	const locked = "-- sys/kernel/security/lockdown --\nnone [integrity] confidentiality\n"
	for _, c := range []struct {
		name, archive, module string
		state                 converge.State
	}{
		{"nothing", "", "", ""},
		{"source only", "-- usr/src/nvidia-open-580.95.05/dkms.conf --\n", "nvidia-open", ""},
		{"added", "-- var/lib/dkms/nvidia/580.95.05/source link=/usr/src/nvidia-580.95.05 --\n", "nvidia", ""}, // for no kernel yet
		{"other kernel", "-- var/lib/dkms/nvidia/580.95.05/6.5.0/x86_64/module/nvidia.ko --\n", "nvidia", ""},
		{"built", "-- var/lib/dkms/nvidia/580.95.05/6.8.0/amd64/module/nvidia.ko --\n", "nvidia", "built"},
		{"installed", tree + drivertest.ModuleFile(ko, "580.95.05", "NVIDIA", "6.8.0"), "nvidia", "installed"},
		{"gone", tree, "nvidia", "installed, modprobe finds no module nvidia"},
		{
			"another on top",
			tree + drivertest.ModuleFile(ko, "570.1", "NVIDIA", "6.8.0"),
			"nvidia",
			"installed, modprobe would load 570.1 from /lib/modules/6.8.0/updates/dkms/nvidia.ko",
		},
		{
			"vermagic",
			tree + drivertest.ModuleFile(ko, "580.95.05", "NVIDIA", "6.5.0"),
			"nvidia",
			"installed, it is built for kernel 6.5.0",
		},
		{
			"unsigned",
			tree + locked + drivertest.ModuleFile(ko, "580.95.05", "NVIDIA", "6.8.0"),
			"nvidia",
			"installed, it is not signed, and the kernel demands that",
		},
	} {
		name, state, err := Built(drivertest.Node(t, c.archive), "580.95.05", "6.8.0")
		check.That(t, name == c.module && state == c.state && err == nil, "%s: %q, %q, %v", c.name, name, state, err)
	}
}

const secured = "-- sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c base64 --\nBgAAAAE=\n"

func kernelSide() KernelSide {
	return KernelSide{
		Version:    "580.95.05",
		Flavour:    "open",
		Build:      "dkms",
		Kernels:    []string{"6.8.0"},
		Companions: []string{"nvidia-uvm"},
	}
}

func TestSecureBootIsReadFirst(t *testing.T) {
	wants, err := Settings(kernelSide())
	must.That(t, err == nil && wants[0].Ref().Kind == "check", "%v", err)
	check.None(t, drivertest.Problems(t, wants, drivertest.Node(t, "")), "got")
	check.Has(t, drivertest.Problems(t, wants, drivertest.Node(t, secured)), "this machine has no such key", "got")
	signed := kernelSide()
	signed.Build = "precompiled"
	wants, _ = Settings(signed)
	check.None(t, drivertest.Problems(t, wants, drivertest.Node(t, secured)), "got")
}

// TestEnrolment wants each step to the enrolment of DKMS's key, with the file that it is in, and no
// more than is to be done.
func TestEnrolment(t *testing.T) {
	key := &modinfo.Key{Name: "DKMS module signing key", Serial: "7"}
	const dkms, ubuntu = "/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der"
	for _, x := range []struct {
		name      string
		t         facts.Trust
		has, none []string
	}{
		{
			"no key yet",
			facts.Trust{SecureBoot: "on", BuildCert: dkms},
			[]string{"precompiled", "step 1 of 3: install dkms", "-out " + dkms, "step 2 of 3: mokutil --import " + dkms, "step 3 of 3: reboot", trouble.Command("apply") + " then checks", "switch Secure Boot off"},
			[]string{"Ubuntu", "shim-signed"},
		},
		{
			"Ubuntu, no key yet",
			facts.Trust{SecureBoot: "on", BuildCert: ubuntu},
			[]string{`source = "distro"`, "update-secureboot-policy --new-key", "mokutil --import " + ubuntu, "step 3 of 3: reboot"},
			[]string{"generate_mok", "precompiled"},
		},
		{
			"Ubuntu",
			facts.Trust{SecureBoot: "on", BuildCert: ubuntu, Build: key},
			[]string{"step 1 of 2: mokutil --import " + ubuntu, "step 2 of 2: reboot", "an image that has the certificate"},
			[]string{"--new-key"},
		},
		{
			"enforced without Secure Boot",
			facts.Trust{SecureBoot: "off", BuildCert: dkms, Build: key},
			[]string{"step 1 of 2"},
			[]string{"switch Secure Boot off"},
		},
		{
			"waits",
			facts.Trust{SecureBoot: "on", BuildCert: dkms, Build: key, Waiting: true},
			[]string{"reboot, and at the console choose Enroll MOK"},
			[]string{"mokutil", "precompiled", "image"},
		},
	} {
		message := enrolment(x.t)
		at := 0
		for _, want := range x.has {
			i := strings.Index(message[at:], want)
			if i < 0 {
				t.Errorf("%s: no %q after %q", x.name, want, message[at:])
				break
			}
			at += i
		}

		for _, not := range x.none {
			check.That(t, !strings.Contains(message, not), "%s: %q in %s", x.name, not, message)
		}
	}
}

func TestModuleWantsInAFolder(t *testing.T) {
	wants := must.Get(Wants(kernelSide(), facts.Facts{}, facts.Modules{}))(t)
	n := drivertest.Node(t, "-- sim.toml --\nlive = false\n")
	for _, w := range wants {
		state, err := w.Look(t.Context(), n)
		if err == nil {
			var to converge.State
			if to, err = w.To(state); err == nil && to != state {
				t.Errorf("%s %s would be made in a folder: %q to %q", w.Ref().Kind, w.Ref().Name, state, to)
			}
		}

		check.That(t, err == nil || errors.As(err, new(host.Later)), "%s %s: %v", w.Ref().Kind, w.Ref().Name, err)
	}
}

func TestOrderOfWhatSettles(t *testing.T) {
	f := facts.Facts{
		Live:   true,
		Kernel: facts.Kernel{Running: "6.8.0"},
		GPUs:   []facts.PCI{{Vendor: "10de", Class: "030200"}},
	}
	wants, err := Wants(kernelSide(), f, facts.Modules{})
	must.OK(t, err)
	var kinds []string
	for _, w := range wants {
		kinds = append(kinds, w.Ref().Kind)
	}
	check.Equal(t, strings.Join(kinds, " "), "dkms module-file initramfs check module paused", "got")
	side := kernelSide()
	side.Companions = append(slices.Clone(side.Companions), Storage) // built against the driver's, and loaded with it
	kinds = nil
	if wants, err = Wants(side, f, facts.Modules{}); err != nil {
		t.Fatal(err)
	}
	for _, w := range wants {
		kinds = append(kinds, w.Ref().Kind)
	}
	check.Equal(t, strings.Join(kinds, " "), "dkms module-file check dkms initramfs check module paused", "got")
	f.Kernel.Running = "6.5.0" // not one that gets modules: it cannot load them
	wants, _ = Wants(kernelSide(), f, facts.Modules{})
	for state, when := range map[string]host.When{
		"": host.AfterReboot,
		"-- sys/module/nvidia/version --\n570.1\n-- proc/driver/nvidia/version --\nOpen Kernel Module\n":     host.AfterReboot,
		"-- sys/module/nvidia/version --\n580.95.05\n-- proc/driver/nvidia/version --\nOpen Kernel Module\n": "",
	} {
		last, later := wants[len(wants)-1], host.Later{}
		_, err := last.Look(t.Context(), drivertest.Node(t, state))
		check.That(t, last.Ref().Kind == "check" && errors.As(err, &later) == (when != "") && later.When == when && strings.Contains(last.Why, "6.5.0"),
			"%q: kernel 6.5.0 runs, which has no folder: %v, %v", state, last.Ref(), err)
	}

	_, err = Wants(KernelSide{}, f, facts.Modules{})
	check.That(t, err != nil, "no kernel, and no refusal")
}

// signedFile is a module with a signature behind its end: one of a module in a Debian kernel's
// package, which says who signed.
func signedFile(t *testing.T, path, version, record string) string {
	t.Helper()
	module := kmodule.Nvidia(version, "Dual MIT/GPL", "6.8.0")
	return drivertest.File(path, kmodule.Signed(module, kmodule.Signature(t, record)))
}

const (
	signedA = "debian12-kernel-6.1"
	signedB = "debian12-kernel-6.12"
	updates = "lib/modules/6.8.0/updates/dkms/"
)

// secure is what machines trust of which an image is made, with the key that a module was signed
// with; "" for no key.
func secure(t *testing.T, record string) *facts.Trust {
	t.Helper()
	if record == "" {
		return &facts.Trust{SecureBoot: "on"}
	}
	m, err := modinfo.Read(drivertest.Node(t, signedFile(t, "nvidia.ko", "1", record)), "/nvidia.ko")
	must.That(t, err == nil && m.Signer != nil, "%v", err)
	return &facts.Trust{
		SecureBoot: "on",
		Build:      m.Signer,
		Enrolled:   []modinfo.Key{*m.Signer},
	}
}

// TestImageSignedBy: in an image for Secure Boot each module must be signed by the key that bake
// was given.
func TestImageSignedBy(t *testing.T) {
	tree := func(uvm string) string {
		return "-- sim.toml --\nlive = false\n-- var/lib/dkms/nvidia/580.95.05/6.8.0/x86_64/module/nvidia.ko --\n-- var/lib/dkms/nvidia/kernel-6.8.0-x86_64 link=580.95.05/6.8.0/x86_64 --\n" +
			"-- lib/modules/6.8.0/modules.dep --\nupdates/dkms/nvidia.ko:\nupdates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko\n" +
			signedFile(t, updates+"nvidia.ko", "580.95.05", signedA) + uvm
	}

	for _, x := range []struct{ name, uvm, key, problem string }{
		{"all", signedFile(t, updates+"nvidia-uvm.ko", "580.95.05", signedA), signedA, ""},
		{"by another", signedFile(t, updates+"nvidia-uvm.ko", "580.95.05", signedA), signedB, "it is signed by "},
		{
			"one by another",
			signedFile(t, updates+"nvidia-uvm.ko", "580.95.05", signedB),
			signedA,
			"nvidia-uvm.ko: it is signed by ",
		},
		{
			"one not signed",
			drivertest.ModuleFile(updates+"nvidia-uvm.ko", "580.95.05", "Dual MIT/GPL", "6.8.0"),
			signedA,
			"nvidia-uvm.ko: it is not signed",
		},
	} {
		n, k := drivertest.Node(t, tree(x.uvm)), kernelSide()
		k.Image = secure(t, x.key)
		_, state, err := k.built(n, "580.95.05", "6.8.0")
		check.That(t, err == nil && strings.HasPrefix(string(state), "installed") && (state == "installed") == (x.problem == "") && strings.Contains(string(state), x.problem),
			"%s: %q, %v", x.name, state, err)
		file, err := k.loadableState(n, "6.8.0")
		check.That(t, err == nil && (file == "580.95.05 open") == (x.problem == ""), "%s: %q, %v", x.name, file, err)
		if _, state, _ = Built(n, "580.95.05", "6.8.0"); state != "installed" {
			t.Errorf("%s: not for Secure Boot: %q", x.name, state)
		}
	}
}

// TestImageOfSignedPackages: of modules that packages bring any signature will do, as their kernel
// knows whose it is; none will not.
func TestImageOfSignedPackages(t *testing.T) {
	const dep = "-- sim.toml --\nlive = false\n-- lib/modules/6.8.0/modules.dep --\nupdates/dkms/nvidia.ko:\n"
	for file, is := range map[string]string{
		signedFile(t, updates+"nvidia.ko", "580.95.05", signedA):                         "580.95.05 open",
		drivertest.ModuleFile(updates+"nvidia.ko", "580.95.05", "Dual MIT/GPL", "6.8.0"): "580.95.05 open, it is not signed, and the kernel demands that",
	} {
		k := KernelSide{
			Version: "580.95.05",
			Flavour: "open",
			Build:   "precompiled",
			Image:   secure(t, signedB),
		}
		state, err := k.loadableState(drivertest.Node(t, dep+file), "6.8.0")
		check.That(t, err == nil && string(state) == is, "%q, want %q, %v", state, is, err)
	}
}

// TestImageBesideSignedBy: a module that is built beside the driver's is built again where another
// key has signed it.
func TestImageBesideSignedBy(t *testing.T) {
	const dep = "-- sim.toml --\nlive = false\n-- usr/src/nvidia-fs-2.26.6/dkms.conf --\n-- lib/modules/6.8.0/modules.dep --\nupdates/dkms/nvidia.ko:\nupdates/dkms/nvidia-fs.ko:\n"
	n, k := drivertest.Node(t, dep+signedFile(t, updates+"nvidia.ko", "580.95.05", signedA)+signedFile(t, updates+"nvidia-fs.ko", "2.26.6", signedB)), kernelSide()
	for key, fits := range map[string]bool{signedA: false, signedB: true} {
		k.Image = secure(t, key)
		_, state, err := k.builtBeside(n, Storage, "6.8.0")
		check.That(t, err == nil && (state == kmod.AddOnFits) == fits, "%s: %q, %v", key, state, err)
	}
}

// TestImageNeedsKey: without a key what DKMS builds is refused in an image for Secure Boot, and
// what a distribution has signed is not.
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
		wants := must.Get(Settings(KernelSide{
			Version: "580.95.05",
			Flavour: "open",
			Build:   x.build,
			Image:   x.image,
		}))(t)
		p := drivertest.Problems(t, wants, drivertest.Node(t, "-- sim.toml --\nlive = false\n"))
		check.That(t, strings.Contains(p, "bake has no key to sign them with") == x.refused && (p != "") == x.refused, "%s: %q", x.name, p)
	}
}

// TestFirstBootOfSignedImage: on a machine with Secure Boot nothing is to be built where modules
// lie that it trusts, though the key is not there; and a build of another version is refused.
func TestFirstBootOfSignedImage(t *testing.T) {
	module := "-- lib/modules/6.8.0/modules.dep --\nupdates/dkms/nvidia.ko:\n" + signedFile(t, updates+"nvidia.ko", "580.95.05", signedA)
	m := must.Get(modinfo.Read(drivertest.Node(t, module), "/"+updates+"nvidia.ko"))(t)
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
		wants := must.Get(Settings(k))(t)
		p := drivertest.Problems(t, wants, drivertest.Node(t, secured+x.archive))
		check.That(t, strings.Contains(p, "cannot use modules built here") == x.refused, "%s: %q", x.name, p)
	}
}

// TestRealtime: a kernel that NVIDIA's build refuses is refused before packages are installed,
// unless the operator says otherwise.
func TestRealtime(t *testing.T) {
	const rt = "-- boot/config-6.8.0 --\nCONFIG_PREEMPT=y\nCONFIG_PREEMPT_RT=y\n"
	for tree, refused := range map[string]bool{
		"": false, "-- boot/config-6.8.0 --\n# CONFIG_PREEMPT_RT is not set\n": false, rt: true,
		"-- lib/modules/6.8.0/build/.config --\nCONFIG_PREEMPT=y\nCONFIG_PREEMPT_RT=y\n":                                                                                                true,
		rt + "-- etc/dkms/nvidia.conf --\nMAKE[0]=\"IGNORE_PREEMPT_RT_PRESENCE=1 make modules\"\n":                                                                                      false,
		rt + "-- lib/modules/6.8.0/modules.dep --\nupdates/dkms/nvidia.ko:\n" + drivertest.ModuleFile("lib/modules/6.8.0/updates/dkms/nvidia.ko", "580.95.05", "Dual MIT/GPL", "6.8.0"): false,
	} {
		wants := must.Get(Settings(kernelSide()))(t)
		p := drivertest.Problems(t, wants, drivertest.Node(t, tree))
		check.That(t, strings.Contains(p, "PREEMPT_RT") == refused, "%q: %q", tree, p)
	}
}

// TestWaitingForHeaders: the modules of a kernel that waits for headers are deferred as those of
// another kernel: they keep no stage back that verifies this one.
func TestWaitingForHeaders(t *testing.T) {
	k := KernelSide{
		Version: "580.95.05",
		Flavour: "open",
		Build:   "dkms",
		Kernels: []string{"6.8.0-3"},
		Waiting: []string{"6.8.0-3"},
	}
	wants := k.moduleWants("6.8.0-3", facts.Facts{Live: true})
	check.Equal(t, len(wants), 2, "wants:")
	for _, w := range wants {
		_, err := w.To("")
		var later host.Later
		check.That(t, errors.As(err, &later) && later.When == host.AnotherKernel, "%s: %v", w.Ref(), err)
	}
}
