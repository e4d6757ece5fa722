// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// dkmsBuild is NVIDIA's modules of one version, built by DKMS for one kernel. Its states are
// "installed", "built" (only in DKMS's tree: another version is installed, or none), "" (not
// built), and "installed, …" with what is wrong with the files: built for another kernel, signed by
// a key that is not enrolled.
type dkmsBuild struct {
	version string
	kernel  string
	built   BuildFunc
}

// A BuildFunc reads from the files in which state a version is in DKMS's tree for a kernel, and
// under which name: nvidia, nvidia-open. The name is "" if DKMS does not know the version.
type BuildFunc func(v host.View, version, kernel string) (name string, state converge.State, err error)

// installed is the state of what modprobe would load.
const installed = "installed"

// dkmsTree is where DKMS builds.
const dkmsTree = "/var/lib/dkms"

// DKMS wants a version's modules built and installed for a kernel.
func DKMS(version, kernel string, built BuildFunc, why string) converge.Want {
	to := func(converge.State) (converge.State, error) { return installed, nil }
	return converge.Want{
		Thing: dkmsBuild{version, kernel, built},
		Why:   why,
		To:    to,
	}
}

// NewDKMS builds the thing again from its name.
func NewDKMS(name string, built BuildFunc) converge.Thing {
	build, kernel, _ := strings.Cut(name, " ")
	return dkmsBuild{strings.TrimPrefix(build, "nvidia/"), kernel, built}
}

// Ref names it "nvidia/580.95.05 6.8.0-88-generic", whatever name the package gives the modules.
func (d dkmsBuild) Ref() converge.Ref {
	return converge.Ref{Kind: "dkms", Name: "nvidia/" + d.version + " " + d.kernel}
}

func (d dkmsBuild) Look(_ context.Context, v host.View) (converge.State, error) {
	_, state, err := d.built(v, d.version, d.kernel)
	if err == nil && state != installed && !v.Runs() {
		return "", host.FirstBoot // nothing can be built there
	}
	return state, err
}

// noSource says that the sources are gone. The package that has them is installed when the modules'
// turn comes: another process has removed its files. The package calls them nvidia or nvidia-open.
func (d dkmsBuild) noSource(v host.View) error {
	owner := "dpkg -S"
	reinstall := "sudo apt-get install --reinstall PACKAGE"
	if facts.PackagerOf(v).Name == "dnf" {
		owner = "rpm -qf"
		reinstall = "sudo dnf reinstall PACKAGE"
	}

	const files = " /usr/src/nvidia-%s/dkms.conf /usr/src/nvidia-open-%[1]s/dkms.conf"
	owner += fmt.Sprintf(files, d.version)
	return &trouble.Error{
		What: fmt.Sprintf("cannot build the modules nvidia %s for %s: their source is not in /usr/src", d.version, d.kernel),
		Try: []string{
			owner + ", which names the package that has the source; then unpack that again: " + reinstall,
			"build = \"precompiled\" in [driver], where the distribution has signed modules",
		},
	}
}

// Make builds and installs the modules, or removes them: for "built" from the kernel's folder, for
// "" from DKMS's tree as well.
func (d dkmsBuild) Make(ctx context.Context, h host.Host, to converge.State) error {
	name, found, err := d.built(h, d.version, d.kernel)
	if err != nil {
		return err
	}
	if name == "" {
		return d.noSource(h)
	}

	build := []string{"-m", name, "-v", d.version, "-k", d.kernel}
	switch to {
	case installed:
		return d.install(ctx, h, name, found, build)
	case "built":
		_, err := h.Do(ctx, append([]string{"dkms", "uninstall"}, build...)...)
		return err
	case "":
		return d.remove(ctx, h, name, build)
	}

	return fmt.Errorf("cannot make %s %q: only installed, built and nothing can be made", d.Ref().Name, to)
}

// remove removes the build. With its last kernel DKMS removes the version as a whole, though its
// package is still installed: then remove adds the version again.
func (d dkmsBuild) remove(ctx context.Context, h host.Host, name string, build []string) error {
	if _, err := h.Do(ctx, append([]string{"dkms", "remove"}, build...)...); err != nil {
		return err
	}
	if _, err := h.Stat(dkmsTree + "/" + name + "/" + d.version); !host.NotExist(err) {
		return err
	}

	_, err := h.Stat("/usr/src/" + name + "-" + d.version + "/dkms.conf")
	if host.NotExist(err) {
		return nil
	}
	if err == nil {
		_, err = h.Do(ctx, "dkms", "add", "-m", name, "-v", d.version)
	}
	return err
}

// dkmsCommand is a command that builds. NVIDIA's dkms.conf says -j$(nproc), whatever dkms's own -j:
// one compiler a core exhausts the memory of a machine with many cores. nproc(1) obeys
// OMP_NUM_THREADS.
func dkmsCommand(v host.View, verb string, build []string) []string {
	jobs := strconv.Itoa(BuildJobs(v))
	return append([]string{"env", "OMP_NUM_THREADS=" + jobs, "dkms", verb, "-j", jobs}, build...)
}

func (d dkmsBuild) install(
	ctx context.Context, h host.Host, name string, found converge.State, build []string,
) error {
	if err := refuseWithoutHeaders(h, d.kernel); err != nil {
		return err
	}

	var err error
	if found != "" && found != "built" {
		// The existing build is wrong, and install --force would only install it again:
		// maybe_build_module and install_module in dkms.in of https://github.com/dkms-project/dkms.
		build = append(build, "--force")
		_, err = h.Do(ctx, dkmsCommand(h, "build", build)...)
	}

	if err == nil {
		_, err = h.Do(ctx, dkmsCommand(h, "install", build)...)
	}
	if err != nil {
		return NotBuilt(h, dkmsTree, name, d.version, d.kernel, err)
	}

	_, state, err := d.built(h, d.version, d.kernel)
	if err != nil || state == installed {
		return err
	}

	// dkms exits with 0 where headers are missing and a build is skipped.
	problem, isInstalled := strings.CutPrefix(string(state), installed+", ")
	if !isInstalled {
		problem = "dkms reported success, and there is no module"
	}

	return &trouble.Error{
		What: fmt.Sprintf("cannot use the modules nvidia %s built for %s: %s", d.version, d.kernel, problem),
		Try: []string{
			"dkms status, which says what was built",
			"modinfo -k " + d.kernel + " nvidia, which says which module is installed and who has signed it",
		},
	}
}

// refuseWithoutHeaders refuses a kernel whose headers are not installed, and names the kernels that
// have some: gpuadm never uses another kernel's.
func refuseWithoutHeaders(v host.View, kernel string) error {
	kernels := WithHeaders(v)
	if slices.Contains(kernels, kernel) {
		return nil
	}

	because := "no kernel has headers here"
	if len(kernels) > 0 {
		because = "these kernels have headers: " + strings.Join(kernels, ", ")
	}

	return &trouble.Error{
		What:    fmt.Sprintf("cannot build modules for kernel %s: its headers are not installed", kernel),
		Because: []string{because},
		Try:     []string{"install linux-headers-" + kernel + " (Debian, Ubuntu) or kernel-devel-" + kernel + " (RHEL)"},
	}
}

// WithHeaders lists the kernels that modules can be built for.
func WithHeaders(v host.View) []string {
	kernels, _ := v.ReadDir("/lib/modules")
	return slices.DeleteFunc(kernels, func(kernel string) bool {
		_, err := v.Stat("/lib/modules/" + kernel + "/build/Makefile")
		return err != nil
	})
}

// BuildJobs bounds the compilers that run at once by cores and by memory: one of NVIDIA's larger
// files takes the better part of a GiB.
func BuildJobs(v host.View) int {
	cpus := strings.Count("\n"+string(contents(v, "/proc/cpuinfo")), "\nprocessor")

	available := 0 // KiB
	for line := range strings.Lines(string(contents(v, "/proc/meminfo"))) {
		rest, ok := strings.CutPrefix(line, "MemAvailable:")
		if ok {
			available, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
		}
	}

	gib := available >> 20
	return max(1, min(cpus, gib))
}
