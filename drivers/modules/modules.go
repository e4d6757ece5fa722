// SPDX-License-Identifier: Apache-2.0

// Package modules wants the driver's kernel modules and the modules loaded beside them, checked by
// their files for each kernel; and the driver's libraries and programs that a node needs.
package modules

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// Files of gpuadm's that modprobe(8) and systemd-modules-load.service(8) read.
const (
	ModprobeFile = "/etc/modprobe.d/gpuadm.conf"
	LoadFile     = "/etc/modules-load.d/gpuadm.conf"
)

// KernelSide is the desired state of the driver's kernel modules.
type KernelSide struct {
	Version    string             // 580.95.05
	Flavour    string             // open, proprietary
	Build      string             // precompiled, shared, dkms
	Kernels    []string           // those that must have the modules; never empty
	Waiting    []string           // kernels of these that do not run, and get the modules once they have headers
	Parameters map[string]string  // of the module nvidia
	Companions []string           // modules to load beside it: nvidia-uvm, nvidia-modeset, nvidia-peermem, nvidia-fs, ib_umad
	Extra      []string           // packages with those companions that belong to the kernel
	Image      *facts.Trust       // of the machines that the image is for, where they boot with Secure Boot; nil: the machine's own counts
	Files      *facts.ModuleCache // files of modules that were read already
	Remade     bool               // the spec asks for MIG: gpuadm partitions the GPUs again after the module is reloaded
}

// Settings returns the wants that come before the driver's packages: nouveau blacklisted,
// parameters set, and a check that the kernel would load what gpuadm builds.
func Settings(k KernelSide) ([]converge.Want, error) {
	conf, err := ModprobeConf(k.Parameters)
	if err != nil {
		return nil, err
	}
	load, err := modulesLoad(k.Companions)
	if err != nil {
		return nil, err
	}
	wants := []converge.Want{trusted(k), buildable(k)}
	wants = append(wants, things.Folders("/etc/modprobe.d", "holds modprobe's settings")...)
	wants = append(wants, things.Exact(ModprobeFile, conf, 0o644, "keeps nouveau away from the GPUs, and sets the parameters of the module nvidia"))
	wants = append(wants, things.Folders("/etc/modules-load.d", "names what is loaded at boot")...)
	return append(wants, things.Exact(LoadFile, load, 0o644, "has the modules loaded at boot, before any container asks for them")), nil
}

// Wants returns the wants that come after the driver's packages: modules of one version for every
// kernel, checked by their files, the initial file systems without nouveau, and the module loaded.
// The order of the Followers matters: the initial file system is made before a module that may wait
// for a reboot.
func Wants(k KernelSide, f facts.Facts, m facts.Modules) ([]converge.Want, error) {
	if len(k.Kernels) == 0 {
		return nil, &trouble.Error{What: "cannot install a driver: no kernel is installed that it could be for", Try: []string{"install a kernel first"}}
	}
	var wants []converge.Want
	for _, kernel := range k.Kernels {
		waits := host.Later{Until: "once kernel " + kernel + " has headers to build modules with; if it is booted before, it has no GPUs"}
		if k.Build == "dkms" {
			build := kmod.DKMS(k.Version, kernel, k.built, "builds the modules for the kernel and installs them")
			if slices.Contains(k.Waiting, kernel) {
				build.To = orLater(build.To, waits)
			}
			wants = append(wants, build)
		}
		file := kmod.ModuleFile(kernel, k.Version, k.Flavour, k.onDiskProven, "the kernel has modules of the driver's version, and would load them")
		switch {
		case !f.Live && !f.Baked:
			file.To = orLater(file.To, host.FirstBoot)
		case slices.Contains(k.Waiting, kernel):
			file.To = orLater(file.To, waits)
		}
		wants = append(wants, file)
	}
	if slices.ContainsFunc(k.Companions, beside) {
		wants = append(wants, companionFiles(k))
	}
	for _, kernel := range k.Kernels {
		if slices.Contains(k.Companions, Storage) && k.Build == "dkms" {
			wants = append(wants, kmod.DKMSBeside(Storage, kernel, k.builtBeside, "it is loaded with the driver that it was built against, and no other"))
		}
	}
	for _, kernel := range k.Kernels {
		wants = append(wants, kmod.Initramfs(kernel, []string{ModprobeFile}, "the initial file system knows modprobe's settings"))
	}
	if f.Live && !slices.ContainsFunc(f.GPUs, facts.PCI.Display) {
		return wants, nil // the module does not load without a GPU: ENODEV
	}
	if f.Live && !slices.Contains(k.Kernels, f.Kernel.Running) {
		return append(wants, booted(f, k)), nil
	}
	return append(wants,
		served(k),
		Loaded(f, k),
		things.Resumed(),
	), nil
}

// booted waits for the boot of a kernel that has the modules, where the running kernel has none:
// its package was removed, and its folder in /lib/modules with it. Until then a driver that it has
// loaded serves, if it has the wanted version.
func booted(f facts.Facts, k KernelSide) converge.Want {
	kernel := k.Kernels[0]
	if f.Modules != nil {
		for _, on := range f.Modules.Kernels {
			if on.Nvidia != nil && on.Nvidia.Version == k.Version {
				kernel = on.Kernel
				break
			}
		}
	}
	look := func(ctx context.Context, v host.View) (string, error) {
		version, flavour := facts.LoadedDriver(v)
		if version == k.Version && (flavour == k.Flavour || flavour == "") {
			return "", nil
		}
		if _, err := v.Driver(ctx); version == "" && err == nil {
			return "", nil
		}
		return "", host.Later{Until: "kernel " + kernel + " is booted", When: host.AfterReboot}
	}
	return things.Check("a kernel with the driver runs", look,
		fmt.Sprintf("kernel %s runs and is not installed, so that no driver can be loaded; kernel %s has the driver", f.Kernel.Running, kernel))
}

// Loaded wants the loaded module to be the module on disk, whichever version that is.
func Loaded(f facts.Facts, k KernelSide) converge.Want {
	return kmod.Module(f.Kernel.Running, []string{ModprobeFile, LoadFile}, k.stateOnDisk, k.Remade, "the loaded module is the module on disk")
}

// orLater defers what is not converged and cannot be made yet, as in a root folder until its first
// boot.
func orLater(to func(converge.State) (converge.State, error), later host.Later) func(converge.State) (converge.State, error) {
	return func(found converge.State) (converge.State, error) {
		want, err := to(found)
		if err == nil && want != found {
			return "", later
		}
		return want, err
	}
}

var (
	parameterName  = pattern.Of(`^[A-Za-z0-9_]+$`)
	plainParameter = pattern.Of(`^[A-Za-z0-9_.,:;=/+-]+$`)
)

// ModprobeConf writes the file for modprobe.d. libkmod passes a line's options to the kernel
// unchanged, which splits them at spaces outside double quotes and knows no escapes (next_arg in
// lib/cmdline.c): modprobe.d cannot set a value with a quote, a backslash or a control character.
func ModprobeConf(parameters map[string]string) ([]byte, error) {
	var b strings.Builder
	b.WriteString("# Written by gpuadm, rewritten at each apply.\nblacklist nouveau\noptions nouveau modeset=0\n")
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[name]
		odd := func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }
		switch {
		case !parameterName().MatchString(name):
			return nil, &trouble.Error{What: fmt.Sprintf("cannot set parameter %q of the module nvidia: a name has letters, digits and _ only", name), Try: []string{"fix parameters in [driver]; modinfo -p nvidia lists the names"}}
		case strings.ContainsFunc(value, odd):
			return nil, &trouble.Error{What: fmt.Sprintf("cannot set parameter %s of the module nvidia: the kernel takes no quotes, backslashes or control characters in values", name), Try: []string{"fix parameters in [driver]"}}
		case !plainParameter().MatchString(value):
			value = `"` + value + `"`
		}
		fmt.Fprintf(&b, "options nvidia %s=%s\n", name, value)
	}
	return []byte(b.String()), nil
}

func modulesLoad(companions []string) ([]byte, error) {
	text := "# Written by gpuadm, rewritten at each apply.\nnvidia\n"
	for _, c := range companions {
		if !pattern.Only(c, pattern.Lower+pattern.Digits+"_-") {
			return nil, fmt.Errorf("internal error: %q is no module's name", c)
		}
		text += c + "\n"
	}
	return []byte(text), nil
}

// trusted refuses, before anything is installed, to build modules that the kernel would not load.
func trusted(k KernelSide) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		if k.Build != "dkms" || !v.Live() && k.Image == nil {
			return "", nil
		}
		t, err := k.trust(v)
		if err != nil || !t.Demands() || t.Trusts(t.Build) {
			return "", err
		}
		if k.Image != nil {
			return unsignable(), nil
		}
		if there, err := k.there(v); err != nil || there {
			return "", err
		}
		by := "under Secure Boot the kernel loads modules signed by enrolled keys only"
		if t.SecureBoot != "on" {
			by = "the kernel loads modules signed by keys it trusts only"
		}
		what := "and this machine has no such key"
		switch {
		case t.Waiting:
			what = fmt.Sprintf("and the key that DKMS signs with (%s, serial %s) waits to be confirmed at the next boot", t.Build.Name, t.Build.Serial)
		case t.Build != nil:
			what = fmt.Sprintf("and the key that DKMS signs with (%s, serial %s) is not enrolled", t.Build.Name, t.Build.Serial)
		}
		return "cannot use modules built here: " + by + ", " + what + enrolment(t), nil
	}
	return things.Check("modules will be trusted", look, "a module that the kernel refuses is found out now, not after the reboot")
}

// ignoreRealtime is the variable that makes NVIDIA's build accept a kernel with PREEMPT_RT:
// kernel-open/conftest.sh, and https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1240.
const ignoreRealtime = "IGNORE_PREEMPT_RT_PRESENCE"

// buildable refuses kernels that NVIDIA's build refuses, before anything is installed. An operator
// who wants such a build sets the variable where dkms(8) reads it: in the files of /etc/dkms.
func buildable(k KernelSide) converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		for _, kernel := range k.Kernels {
			if there, err := k.has(v, kernel); k.Build != "dkms" || there || err != nil {
				if err != nil {
					return "", err
				}
				continue
			}
			config, err := v.ReadFile("/boot/config-" + kernel)
			if err != nil || !strings.Contains(string(config), "\nCONFIG_PREEMPT_RT=y\n") {
				continue // DKMS's log names other causes
			}
			names, _ := v.ReadDir("/etc/dkms")
			if slices.ContainsFunc(names, func(name string) bool {
				text, err := v.ReadFile("/etc/dkms/" + name)
				return err == nil && strings.Contains(string(text), ignoreRealtime)
			}) {
				continue
			}
			return fmt.Sprintf("cannot build modules for kernel %s: it has PREEMPT_RT, and NVIDIA's build refuses such kernels", kernel), nil
		}
		return "", nil
	}
	return things.Check("kernels that modules can be built for", look, "a build that cannot succeed is found out before packages are installed",
		"boot a kernel without PREEMPT_RT",
		"or, at your own risk, have DKMS set "+ignoreRealtime+`: in /etc/dkms/nvidia.conf, MAKE[0]="`+ignoreRealtime+`=1 make -j$(nproc) KERNEL_UNAME=${kernelver} modules"`)
}

// has says whether a kernel has modules of the version, and would load them.
func (k KernelSide) has(v host.View, kernel string) (bool, error) {
	state, err := k.onDiskProven(v, kernel)
	return err == nil && string(state) == k.Version+" "+k.Flavour, err
}

// there says whether nothing has to be built: each kernel has modules of the version, and would
// load them. The modules of an image were signed when it was baked, and the key is not on the
// machine.
func (k KernelSide) there(v host.View) (bool, error) {
	for _, kernel := range k.Kernels {
		if has, err := k.has(v, kernel); !has {
			return false, err
		}
	}
	return true, nil
}

// unsignable is the problem of an image whose modules no machine with Secure Boot would load.
func unsignable() string {
	return "cannot bake modules for Secure Boot: DKMS builds them, and bake has no key to sign them with" +
		"\nunder Secure Boot the kernel loads modules signed by enrolled keys only" +
		things.OrTry(trouble.Command("bake --module-key FILE --module-cert FILE")+", and enroll the certificate when the image is registered: docs/bake.md") +
		things.OrTry(`write build = "precompiled" in [driver], where the source has modules for these kernels that are signed`) +
		things.OrTry("--secure-boot=false, if no machine of this image boots with Secure Boot")
}

// enrolment lists the steps that make the kernel trust the key that DKMS signs with. The next read
// of the keyrings shows whether the operator took them.
//
// Sources: https://github.com/dkms-project/dkms README.md ("Secure Boot") and prepare_mok in
// dkms.in; mokutil(1). Images:
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/create-ami-with-uefi-secure-boot.html,
// https://docs.cloud.google.com/sdk/gcloud/reference/compute/images/create and
// https://learn.microsoft.com/en-us/azure/virtual-machines/trusted-launch-secure-boot-custom-uefi.
func enrolment(t facts.Trust) (try string) {
	const ubuntu = "/var/lib/shim-signed/"
	confirm := "reboot, and at the console choose Enroll MOK, Continue, Yes, type the password, then Reboot; " + trouble.Command("apply") + " then checks that the key is enrolled"
	if t.Waiting {
		return things.OrTry(confirm)
	}
	signed := `write build = "precompiled" in [driver], where the source has modules for these kernels that are signed by a key they trust, as source = "distro" has on RHEL 10 and AlmaLinux`
	first := `install dkms, mokutil and openssl, and make the key: dkms generate_mok, or before DKMS 3.1 openssl req -new -x509 -nodes -days 36500 -subj "/CN=DKMS module signing key" -newkey rsa:2048 -keyout /var/lib/dkms/mok.key -outform DER -out ` + t.BuildCert
	if strings.HasPrefix(t.BuildCert, ubuntu) {
		signed = `write source = "distro" in [driver]: Ubuntu's own modules are signed by a key that its kernels trust`
		first = "apt-get install dkms mokutil shim-signed, and make the key: update-secureboot-policy --new-key"
	}
	steps := []string{"mokutil --import " + t.BuildCert + ", which asks for a password that is typed again at the console", confirm}
	if t.Build == nil {
		steps = append([]string{first}, steps...)
	}
	try = things.OrTry(signed)
	for i, step := range steps {
		try += things.OrTry(fmt.Sprintf("or enroll the key of DKMS, step %d of %d: %s", i+1, len(steps), step))
	}
	try += things.OrTry("or, in a cloud without a console, start the machine from an image that has the certificate: UEFI data of an AMI on AWS, --signature-database-file on Google, additional UEFI signatures of a gallery image on Azure")
	if t.SecureBoot == "on" {
		try += things.OrTry("or switch Secure Boot off in the firmware")
	}
	return try
}

// served refuses to call a machine converged if its loaded module serves some of its GPUs only. It
// judges a module that is not loaded yet, or is to be replaced, after it is loaded.
func served(k KernelSide) converge.Want {
	look := func(ctx context.Context, v host.View) (string, error) {
		if version, flavour := facts.LoadedDriver(v); !v.Live() || version != k.Version || flavour != k.Flavour {
			return "", nil
		}
		problem, err := kmod.UnboundGPUs(v)
		if problem != "" {
			problem = "cannot use all GPUs: " + problem
			if kernelLog := faults.KernelSays(ctx, v); kernelLog != "" {
				problem += "; " + kernelLog
			}
			problem += things.OrTry(faults.Of("DRV-008").Fix)
		}
		return problem, err
	}
	return things.Check("every GPU is served", look, "the driver serves all GPUs on the bus",
		"journalctl -k --grep 'NVRM|Xid', for what the driver says about them")
}
