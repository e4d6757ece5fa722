// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// dkmsBuild is NVIDIA's modules of one version, built by DKMS for one kernel. Its states are
// "installed", "built" (only in DKMS's tree: another version is installed, or none), "" (not
// built), and "installed, …" with what is wrong with the files: built for another kernel, signed by
// a key that is not enrolled.
type dkmsBuild struct {
	version, kernel string
	built           BuildFunc
}

// A BuildFunc reads from the files in which state a version is in DKMS's tree for a kernel, and
// under which name: nvidia, nvidia-open. The name is "" if DKMS does not know the version.
type BuildFunc func(v host.View, version, kernel string) (name string, state converge.State, err error)

// installed is the state of what modprobe would load.
const installed = "installed"

// DKMS wants a version's modules built and installed for a kernel.
func DKMS(version, kernel string, proof BuildFunc, why string) converge.Want {
	return converge.Want{Thing: dkmsBuild{version, kernel, proof}, Why: why, To: func(converge.State) (converge.State, error) {
		return installed, nil
	}}
}

// NewDKMS builds the thing again from its name.
func NewDKMS(name string, proof BuildFunc) converge.Thing {
	what, kernel, _ := strings.Cut(name, " ")
	return dkmsBuild{strings.TrimPrefix(what, "nvidia/"), kernel, proof}
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

// Make builds and installs the modules, or removes them: for "built" from the kernel's folder, for
// "" from DKMS's tree as well.
func (d dkmsBuild) Make(ctx context.Context, h host.Host, to converge.State) error {
	name, now, err := d.built(h, d.version, d.kernel)
	if err != nil {
		return err
	}
	if name == "" {
		return &trouble.Error{What: fmt.Sprintf("cannot build the modules nvidia %s for %s: their source is not there", d.version, d.kernel), Try: []string{"build = \"precompiled\" in [driver], or install the package with the source"}}
	}
	about := []string{"-m", name, "-v", d.version, "-k", d.kernel}
	switch to {
	case installed:
		return d.install(ctx, h, name, now, about)
	case "built":
		_, err := h.Do(ctx, append([]string{"dkms", "uninstall"}, about...)...)
		return err
	case "":
		// With its last kernel DKMS removes the version as a whole, though its package is still
		// installed.
		if _, err := h.Do(ctx, append([]string{"dkms", "remove"}, about...)...); err != nil {
			return err
		}
		if _, err := h.Stat("/var/lib/dkms/" + name + "/" + d.version); !host.NotExist(err) {
			return err
		}
		if _, err := h.Stat("/usr/src/" + name + "-" + d.version + "/dkms.conf"); err != nil {
			return nil
		}
		_, err := h.Do(ctx, "dkms", "add", "-m", name, "-v", d.version)
		return err
	}
	return fmt.Errorf("cannot make %s %q: only installed, built and nothing can be made", d.Ref().Name, to)
}

// dkmsInstall is the command that builds and installs. NVIDIA's dkms.conf says -j$(nproc), whatever
// dkms's own -j: one compiler a core exhausts the memory of a machine with many cores. nproc(1)
// obeys OMP_NUM_THREADS.
func dkmsInstall(v host.View, about []string) []string {
	jobs := strconv.Itoa(BuildJobs(v))
	return append([]string{"env", "OMP_NUM_THREADS=" + jobs, "dkms", "install", "-j", jobs}, about...)
}

func (d dkmsBuild) install(ctx context.Context, h host.Host, name string, now converge.State, about []string) error {
	if err := headers(h, d.kernel); err != nil {
		return err
	}
	argv := dkmsInstall(h, about)
	var err error
	if now != "" && now != "built" {
		// The build there is wrong, and install --force would only install it again:
		// maybe_build_module and install_module in dkms.in of https://github.com/dkms-project/dkms.
		argv = append(argv, "--force")
		_, err = h.Do(ctx, slices.Replace(slices.Clone(argv), 3, 4, "build")...)
	}
	if err == nil {
		_, err = h.Do(ctx, argv...)
	}
	if err != nil {
		return NotBuilt(h, "/var/lib/dkms", name, d.version, d.kernel, err)
	}
	_, state, err := d.built(h, d.version, d.kernel)
	if err != nil || state == installed {
		return err
	}
	// dkms exits with 0 where headers are missing and a build is skipped.
	problem := strings.TrimPrefix(string(state), installed+", ")
	if problem == string(state) {
		problem = "dkms reported success, and no module is there"
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot use the modules nvidia %s built for %s: %s", d.version, d.kernel, problem),
		Try:  []string{"dkms status, which says what was built", "modinfo -k " + d.kernel + " nvidia, which says what lies there and who has signed it"},
	}
}

// headers refuses a kernel whose headers are not installed, and names the kernels that have some:
// gpuadm never uses another kernel's.
func headers(v host.View, kernel string) error {
	with := WithHeaders(v)
	if slices.Contains(with, kernel) {
		return nil
	}
	t := &trouble.Error{
		What:    fmt.Sprintf("cannot build modules for kernel %s: its headers are not installed", kernel),
		Because: []string{"no kernel has headers here"},
		Try:     []string{"install linux-headers-" + kernel + " (Debian, Ubuntu) or kernel-devel-" + kernel + " (RHEL)"},
	}
	if len(with) > 0 {
		t.Because = []string{"these kernels have headers: " + strings.Join(with, ", ")}
	}
	return t
}

// WithHeaders lists the kernels that modules can be built for.
func WithHeaders(v host.View) []string {
	kernels, _ := v.ReadDir("/lib/modules")
	return slices.DeleteFunc(kernels, func(k string) bool {
		_, err := v.Stat("/lib/modules/" + k + "/build/Makefile")
		return err != nil
	})
}

// BuildJobs bounds the compilers that run at once by cores and by memory: one of NVIDIA's larger
// files takes the better part of a GiB.
func BuildJobs(v host.View) int {
	cpus := strings.Count("\n"+string(mustRead(v, "/proc/cpuinfo")), "\nprocessor")
	var free int
	for line := range strings.Lines(string(mustRead(v, "/proc/meminfo"))) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			free, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
		}
	}
	return max(1, min(cpus, free>>20))
}

// mustRead reads a file; nil if it is not there.
func mustRead(v host.View, name string) []byte {
	b, err := v.ReadFile(name)
	if err != nil {
		return nil
	}
	return b
}

// NotBuilt says why a build in DKMS's tree failed, with the compiler's first error in its log.
func NotBuilt(v host.View, tree, name, version, kernel string, err error) error {
	what := "nvidia"
	if strings.HasPrefix(name, "nvidia-fs") {
		what = name
	}
	t := &trouble.Error{What: fmt.Sprintf("cannot build the modules %s %s for %s: %v", what, version, kernel, err), Err: err}
	if errors.Is(err, context.DeadlineExceeded) { // the deadline killed the compiler, not a lack of memory
		t.What = fmt.Sprintf("cannot build the modules %s %s for %s within --deadline: the build was ended", what, version, kernel)
		return t
	}
	tree = path.Join(tree, name, version)
	logs := []string{tree + "/build/make.log"}
	for _, arch := range []string{"x86_64", "amd64", "aarch64", "arm64"} {
		logs = append(logs, path.Join(tree, kernel, arch, "log/make.log"))
	}
	for _, log := range logs {
		data, readErr := v.ReadFile(log)
		if readErr != nil {
			continue
		}
		if first := FirstError(string(data)); first != "" {
			t.What = fmt.Sprintf("cannot build the modules %s %s for %s: %s", what, version, kernel, first)
			t.Because = []string{"the first error in " + log}
		}
		t.Try = append(t.Try, "read "+log)
		break
	}
	if ce := (*host.CommandError)(nil); errors.As(err, &ce) && ce.Stderr != "" {
		t.Because = append(t.Because, quoted("dkms", ce.Stderr)...)
	}
	return t
}

// FirstError finds the line that says why make failed: the first error. The last one only repeats
// that make failed.
func FirstError(log string) string {
	echo := ""
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		switch {
		case strings.Contains(line, "Killed"):
			return "the compiler was killed, most likely for want of memory: " + line
		case strings.Contains(line, " error: "), strings.Contains(line, "fatal error:"), strings.HasPrefix(line, "ERROR: modpost:"),
			strings.Contains(line, "undefined reference"), strings.Contains(line, "No space left on device"), strings.Contains(line, ": not found"), strings.Contains(line, ": command not found"):
			return line
		case echo == "" && strings.Contains(line, "***"):
			echo = line
		}
	}
	return echo
}

// beside is a module of another package, with its own version, that DKMS builds against the
// driver's modules: nvidia-fs. The kernel loads it only with the driver that it was built against,
// so DKMS must rebuild it for another driver, also at undo. Its states are "not built", "of another
// driver" and "fits": built against the installed driver, or there is nothing to build, or no
// driver to build it against.
type beside struct {
	name, kernel string
	built        BesideFunc
}

// A BesideFunc returns the state of such a module for a kernel, and which version of its source
// DKMS is to build.
type BesideFunc func(v host.View, name, kernel string) (version string, state converge.State, err error)

const (
	// BesideNotBuilt, BesideOld and BesideFits are states of a module that is built beside the
	// driver's.
	BesideNotBuilt = converge.State("not built")
	BesideOld      = converge.State("of another driver")
	BesideFits     = converge.State("fits")
)

// DKMSBeside wants a module built against the driver's that the kernel has.
func DKMSBeside(name, kernel string, proof BesideFunc, why string) converge.Want {
	b := beside{name, kernel, proof}
	return converge.Want{Thing: b, Why: why, To: func(converge.State) (converge.State, error) { return BesideFits, nil }}
}

// FormBeside is the form of such a module, for the journal.
const FormBeside = "beside"

// NewDKMSBeside builds the thing again from its name.
func NewDKMSBeside(name string, proof BesideFunc) converge.Thing {
	what, kernel, _ := strings.Cut(name, " for ")
	return beside{what, kernel, proof}
}

// Ref names it "nvidia-fs for 6.8.0-88-generic", without a version: its package decides that.
func (b beside) Ref() converge.Ref {
	return converge.Ref{Kind: "dkms", Name: b.name + " for " + b.kernel, Form: FormBeside}
}

func (b beside) Look(_ context.Context, v host.View) (converge.State, error) {
	_, state, err := b.built(v, b.name, b.kernel)
	if err == nil && state != BesideFits && !v.Runs() {
		return "", host.FirstBoot // nothing can be built there
	}
	return state, err
}

// Affected says that another driver needs a rebuild, whether DKMS builds that driver or packages
// bring it.
func (b beside) Affected(found converge.State, by converge.Change) converge.State {
	switch {
	case slices.Contains(by.Brings, b.name) && by.After == "" && by.Before != "":
		return BesideFits // its package is removed
	case len(by.Brings) > 0, by.Kind == "dkms" && strings.HasPrefix(by.Name, "nvidia/") && strings.HasSuffix(by.Name, " "+b.kernel):
		return BesideOld
	}
	return found
}

// Current is always "fits".
func (b beside) Current(converge.State) converge.State { return BesideFits }

// Make removes the earlier build first: else dkms installs that again.
func (b beside) Make(ctx context.Context, h host.Host, _ converge.State) error {
	version, now, err := b.built(h, b.name, b.kernel)
	if err != nil || now == BesideFits {
		return err
	}
	if err := headers(h, b.kernel); err != nil {
		return err
	}
	about := []string{"-m", b.name, "-v", version}
	tree := "/var/lib/dkms/" + b.name + "/" + version
	if _, err := h.Stat(tree + "/" + b.kernel); err == nil {
		if _, err := h.Do(ctx, append(append([]string{"dkms", "remove"}, about...), "-k", b.kernel)...); err != nil {
			return err
		}
	}
	if _, err := h.Stat(tree); host.NotExist(err) { // DKMS removes it with its last kernel, though its package is still installed
		if _, err := h.Do(ctx, append([]string{"dkms", "add"}, about...)...); err != nil {
			return err
		}
	}
	if _, err = h.Do(ctx, dkmsInstall(h, append(about, "-k", b.kernel))...); err != nil {
		return NotBuilt(h, "/var/lib/dkms", b.name, version, b.kernel, err)
	}
	if _, now, err = b.built(h, b.name, b.kernel); err == nil && now != BesideFits {
		return &trouble.Error{
			What: fmt.Sprintf("cannot use the module %s %s built for %s: it is %s, though dkms reported success", b.name, version, b.kernel, now),
			Try:  []string{"dkms status, which lists what was built", "or write gds = false in [driver]"},
		}
	}
	return err
}
