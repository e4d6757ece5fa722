// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/things/kmod"

	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// planDriver shows what apply would change of the driver: it is two stages'.
func planDriver() string { return trouble.Command("plan packages modules") }

// lacksModule reports whether the running kernel has no file of the module nvidia, though parts of
// a driver are installed.
func lacksModule(m *Machine) bool {
	if !m.driverInstalled() || m.loaded() {
		return false
	}
	kernel, _ := m.running() // it has no folder in /lib/modules where its package was removed
	hasModule := kernel.Nvidia != nil || kernel.Problem != ""
	return !hasModule && len(kernel.Files) == 0 && len(kernel.Unlisted) == 0
}

func noHeaders(m *Machine) []Finding {
	k, installed := m.running()
	if !installed || !lacksModule(m) || k.Headers || len(m.dkmsModules()) == 0 {
		return nil
	}
	return []Finding{{
		What:    "/lib/modules/" + k.Kernel + "/build leads to no headers",
		Command: m.Packages().headersOf(k.Kernel),
	}}
}

// buildFailed goes by the log that DKMS moves away when a build has succeeded: do_build in dkms.in
// of https://github.com/dkms-project/dkms.
func buildFailed(m *Machine) []Finding {
	if !lacksModule(m) {
		return nil
	}
	kernel := m.Basics().Kernel.Running
	for _, module := range m.dkmsModules() {
		log := dkmsTree + "/" + module + "/build/make.log"
		text, _ := m.text(log)
		if !strings.Contains(text, kernel) {
			continue // no log, or that of another kernel
		}
		name, version, _ := strings.Cut(module, "/")
		what := fmt.Sprintf("DKMS could not build %s %s for %s", name, version, kernel)
		if line := kmod.FirstError(text); line != "" {
			what += ": " + line
		}
		return []Finding{{Object: version, What: what, Command: "less " + log}}
	}

	return nil
}

func noModule(m *Machine) []Finding {
	if !lacksModule(m) {
		return nil
	}
	finding := Finding{
		What:    "kernel " + m.Basics().Kernel.Running + " has no module nvidia",
		Command: "sudo dkms autoinstall && sudo modprobe nvidia",
	}
	if len(m.dkmsModules()) == 0 {
		finding.Command = planDriver()
	}
	if _, installed := m.running(); !installed {
		finding.What = "kernel " + m.Basics().Kernel.Running + " runs, and is not installed: it has no folder in /lib/modules"
		finding.Command = "sudo reboot"
	}

	for _, kernel := range m.Basics().Modules.Kernels {
		if kernel.Nvidia != nil {
			finding.What += "; kernel " + kernel.Kernel + " has " + kernel.Nvidia.Version
			break
		}
	}

	return []Finding{finding}
}

func unlisted(m *Machine) []Finding {
	k, ok := m.running()
	if !ok || m.loaded() || len(m.GPUs()) == 0 || len(k.Files) > 0 || len(k.Unlisted) == 0 {
		return nil
	}
	return []Finding{{What: "modules.dep of " + k.Kernel + " does not list " + k.Unlisted[0]}}
}

// notLoadable says whether the running kernel has the module, and it is not loaded.
func notLoadable(m *Machine) (facts.KernelModules, bool) {
	k, ok := m.running()
	hasModule := k.Nvidia != nil || k.Problem != ""
	return k, ok && m.ownDriver() && len(m.GPUs()) > 0 && !m.passesAll() && !m.loaded() && hasModule
}

// otherKernel reads the kernel's refusal, "nvidia: version magic 'A' should be 'B'": on RHEL
// derivatives one kmod serves several kernels.
func otherKernel(m *Machine) []Finding {
	if _, ok := notLoadable(m); !ok {
		return nil
	}
	return saying("the kernel", lastLineWith(m.Log(), "nvidia: version magic"))
}

func otherDriver(m *Machine) (found []Finding) {
	if !m.driverInstalled() {
		return nil // without NVIDIA's driver another one may hold it
	}

	lines := strings.ReplaceAll(drivers.KeepsOthersAway, "\n", `\n`)
	blacklist := "printf '" + lines + "' | sudo tee /etc/modprobe.d/no-other-driver.conf"
	for _, taken := range m.Basics().Modules.Taken {
		found = append(found, Finding{
			Object:  taken.Address,
			What:    "GPU " + taken.Address + " is bound to " + taken.Module,
			Command: blacklist + " && " + m.Packages().commands().initrd + " && sudo reboot",
		})
	}

	return found
}

// refusal is how the kernel says that it refuses a module for its signature: module_sig_check in
// kernel/module/signing.c of the kernel's tree (a sentence of its own since 5.4), and lockdown's in
// security/security.c; the same in https://github.com/NVIDIA/gpu-operator/issues/1726.
var refusal = pattern.Of(`(?i)loading of (?:unsigned module|module with \w+ \w+) is rejected|Lockdown: .*unsigned module loading is restricted`)

func refusedSignature(m *Machine) []Finding {
	kernel, ok := notLoadable(m)
	if !ok || kernel.Nvidia == nil {
		return nil
	}

	isRefused := slices.ContainsFunc(m.Log(), refusal().MatchString)
	return refusedModule(kernel, m.Basics().Modules.Trust, isRefused)
}

// refusedModule describes a module nvidia whose signature the kernel refuses. isRefused says that
// the kernel has refused a module since the boot; it does not say which.
func refusedModule(kernel facts.KernelModules, trust facts.Trust, isRefused bool) []Finding {
	module := kernel.Nvidia
	signer := module.Signer
	keysKnown := len(trust.Enrolled)+len(trust.Kernels) > 0 // else none could be read
	mayBeTrusted := signer != nil && (!keysKnown || trust.Trusts(signer))
	if !isRefused && (!trust.Demands() || mayBeTrusted) {
		return nil
	}

	what := module.Path + " is not signed"
	switch {
	case mayBeTrusted:
		what = "the kernel refused a module; " + module.Path + " is signed by " + signer.Name
	case signer != nil:
		what = module.Path + " is signed by " + signer.Name + ", which is not enrolled"
	}

	finding := Finding{What: what + "; Secure Boot is " + trust.SecureBoot}
	if trust.BuildCert != "" && trust.Build != nil && !trust.Trusts(trust.Build) {
		finding.Command = "sudo mokutil --import " + trust.BuildCert
		if trust.Waiting {
			finding.What += "; the key waits to be confirmed at the console"
			finding.Command = "sudo reboot"
		}
	}

	return []Finding{finding}
}

func notLoaded(m *Machine) []Finding {
	k, ok := notLoadable(m)
	if !ok {
		return nil
	}
	what := "the module nvidia of " + k.Kernel + " is there, and is not loaded"
	if k.Problem != "" {
		what = k.Problem
	}
	return []Finding{{What: what}}
}

func otherFlavour(m *Machine) []Finding {
	if _, ok := m.NVML(); ok && !m.someMissing() {
		return nil
	}
	return saying("the driver", lastLineWith(m.sinceLoad(), faults.Of("DRV-008").Says...))
}

// saying returns a finding with this text, or none if the text is empty.
func saying(who, line string) []Finding {
	if line == "" {
		return nil
	}
	return []Finding{{What: who + " says: " + line}}
}

// someMissing says whether the driver answers for fewer GPUs than are on the bus.
func (m *Machine) someMissing() bool {
	gpus, ok := m.NVML()
	return !ok || slices.ContainsFunc(m.GPUs(), func(p facts.PCI) bool {
		g, there := gpus[p.Address]
		return !there || g.Lost != ""
	})
}

// gpuIn finds a GPU of the PCI bus that a line names: 0000:17:00.0, 0000:17:00 or PCI:0000:17:00.
func (m *Machine) gpuIn(line string) string {
	for _, p := range m.GPUs() {
		if strings.Contains(strings.ToLower(line), strings.TrimSuffix(p.Address, path.Ext(p.Address))) {
			return p.Address
		}
	}
	return ""
}

func noBAR(m *Machine) []Finding {
	lines := m.sinceLoad()
	if at := slices.IndexFunc(lines, faults.Of("DRV-016").In); at >= 0 && m.someMissing() {
		near := strings.Join(lines[at:min(at+3, len(lines))], " ") // the next line names the device: nv-pci.c
		return []Finding{{
			Object: m.gpuIn(near),
			What:   "the driver says: " + strings.TrimSpace(near),
		}}
	}

	return nil
}

func noFirmware(m *Machine) []Finding {
	k, ok := m.running()
	if !ok || !m.loaded() || !m.someMissing() {
		return nil
	}
	line := lastLineWith(m.sinceLoad(), "Direct firmware load for nvidia/")
	if found := saying("the kernel", line); found != nil {
		return found
	}
	f := m.Facts()
	if len(k.Missing) == 0 || f.Driver != nil || f.Modules.Mismatch() != "" || len(f.Modules.Libraries) == 0 {
		return nil
	}
	return []Finding{{What: "/lib/firmware/" + k.Missing[0] + ", which the module asks for, is not there"}}
}

// noAdapter returns what the driver says about GPUs that it does not answer for, once for each.
func noAdapter(m *Machine) (found []Finding) {
	gpus, _ := m.NVML()
	seen := map[string]bool{}
	for _, line := range m.sinceLoad() {
		address := m.gpuIn(line)
		g, answers := gpus[address]
		if seen[address] || answers && g.Lost == "" || !m.someMissing() || !faults.Of("DRV-017").In(line) {
			continue
		}
		seen[address] = true
		found = append(found, Finding{
			Object: address,
			What:   "the driver says: " + strings.TrimSpace(line),
		})
	}

	return found
}

func mismatch(m *Machine) []Finding {
	what := m.Basics().Modules.Mismatch()
	if what == "" || !m.ownDriver() {
		return nil
	}
	if when := m.upgraded(); when != "" {
		what += "; " + when
	}

	finding := Finding{What: what}
	if on := m.moduleOfNoLibrary(); on != "" {
		finding.What += "; the module on the disk is " + on
		finding.Fix = "install the module and the libraries in one version, which an operator chooses: a reboot loads the same module again"
		finding.Command = planDriver()
		finding.Other = "the module on the disk does not fit the libraries either"
	}

	return []Finding{finding}
}

// moduleOfNoLibrary is the version of the running kernel's module on the disk, where no library is
// of it: an image's bootstrap has installed one over the other. "" where one fits, or where that
// is not known.
// Source: https://github.com/Azure/AKS/issues/5869.
func (m *Machine) moduleOfNoLibrary() string {
	k, ok := m.running()
	libraries := m.Basics().Modules.Libraries
	if !ok || k.Nvidia == nil || k.Nvidia.Version == "" || len(libraries) == 0 {
		return ""
	}
	fits := func(l facts.Library) bool { return l.Version == k.Nvidia.Version }
	if slices.ContainsFunc(libraries, fits) {
		return ""
	}
	return k.Nvidia.Version
}

// upgraded says when dpkg last replaced a library of the driver: "2026-01-02 02:14:05 upgrade
// libnvidia-compute-580:amd64 OLD NEW", dpkg(1), FILES.
func (m *Machine) upgraded() string {
	text, _ := m.text("/var/log/dpkg.log")
	for _, line := range slices.Backward(strings.Split(text, "\n")) {
		fields := strings.Fields(line)
		if len(fields) != 6 || fields[2] != "upgrade" || !isLibrary(fields[3]) {
			continue
		}
		name, _, _ := strings.Cut(fields[3], ":")
		day := fields[0]
		hour := fields[1]
		version := fields[5]
		return "dpkg upgraded " + name + " to " + version + " at " + day + " " + hour
	}

	return ""
}

// isLibrary reports whether a package has libraries of the driver.
func isLibrary(name string) bool {
	prefixes := []string{"libnvidia-compute", "libcuda1", "libnvidia-ml1"}
	return slices.ContainsFunc(prefixes, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}

// hidden says that the library was not found where that is not a fault: systems that come with
// their driver, such as Container-Optimized OS and Talos, have it where containers find it.
// Sources: GoogleCloudPlatform/container-engine-accelerators at 992db812,
// nvidia-driver-installer/cos; siderolabs/extensions at 26822f5,
// nvidia-gpu/nvidia-container-toolkit/nvidia-pkgs.
func hidden(f facts.Facts) bool {
	other := drivers.New(nil).Other(f)
	return f.NVMLSays == "LIBRARY_NOT_FOUND" && other.Owner != "" && f.DriverOwner == nil
}

func noLibraries(m *Machine) []Finding {
	f := m.Facts()
	if f.Modules.Version == "" || f.NVMLSays != "LIBRARY_NOT_FOUND" || hidden(f) {
		return nil
	}
	if !m.ownDriver() || len(m.GPUs()) == 0 {
		return nil
	}
	return []Finding{{What: f.NoDriver}}
}

func driverSilent(m *Machine) []Finding {
	f := m.Facts()
	switch {
	case !m.loaded() || hangs(f) || hidden(f) || !m.ownDriver():
		return nil
	case f.NVMLSays == "":
		if f.Driver == nil && f.NoDriver != "" {
			m.cannotRead("GPUs", errors.New(f.NoDriver))
		}
		return nil
	case f.NVMLSays == "NO_PERMISSION":
		m.cannotRead("GPUs", fs.ErrPermission)
		return nil
	}

	return []Finding{{What: f.NoDriver}}
}
