// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	installerWords   = "/var/log/nvidia-installer.log"
	uninstallerWords = "/var/log/nvidia-uninstall.log"

	MaxRunfile  = 2 << 30   // bytes; those of 2026 have 0.4 GiB
	runfileSize = 512 << 20 // bytes; the assumed size of an installer before its download
	unpacked    = 4         // an installer takes at most this many times its size unpacked, and again that much installed
)

// Make installs or uninstalls the version. The installer itself replaces a version that it
// installed earlier.
func (r runfile) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return takeAway(ctx, h)
	}
	if to != r.wanted() {
		var err error
		if r, err = keptRunfile(h, to); err != nil {
			return err
		}
	}
	before, err := ByInstaller(h)
	if err != nil {
		return err
	}
	kernel, err := buildKernel(ctx, h)
	if err != nil {
		return err
	}
	file, err := r.fetch(ctx, h)
	if err != nil {
		return err
	}
	if err := r.install(ctx, h, file, kernel); err != nil {
		return err
	}
	return sweep(h, r.version, versionIn(before))
}

// keptRunfile returns the runfile of an earlier state, whose installer was kept.
func keptRunfile(v host.View, to converge.State) (runfile, error) {
	version := versionIn(to)
	_, flavour, _ := strings.Cut(string(to), " ")
	file, err := runfileOf(v, version)
	if err != nil {
		return runfile{}, err
	}
	if file == "" || flavour != FlavourOpen && flavour != FlavourProprietary {
		return runfile{}, &trouble.Error{
			What: fmt.Sprintf("cannot install driver %s again: its runfile is not in %s", to, Runfiles),
			Try:  []string{"put version, url and sha256 of that runfile in node.toml, and apply"},
		}
	}
	_, sum, _ := strings.Cut(strings.TrimSuffix(path.Base(file), ".run"), "-")
	return runfile{version: version, flavour: flavour, url: "file://" + file, sha256: sum}, nil
}

// fetch returns the installer in Runfiles after a check of its digest, also if the file was there
// already.
func (r runfile) fetch(ctx context.Context, h host.Host) (string, error) {
	file := path.Join(Runfiles, r.version+"-"+r.sha256+".run")
	if is, err := digestOf(h, file); err == nil && is == r.sha256 {
		return file, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, dir := range []string{converge.Home, Runfiles} {
		if err := h.Mkdir(dir, host.Attr{Mode: 0o700}); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	err := h.Download(ctx, host.Request{URL: r.url, SHA256: r.sha256, Max: MaxRunfile, Via: r.via}, file, host.Attr{Mode: 0o600})
	if err != nil {
		return "", &trouble.Error{
			What: err.Error(), Err: err,
			Because: []string{"nothing of it was run"},
			Try:     []string{"compare sha256 in [driver.runfile] with what NVIDIA publishes for driver " + r.version + ", and url with where the file lies"},
		}
	}
	return file, nil
}

// An installerOption is an option that the installer knows from a version on; it refuses to run
// with an unknown option.
type installerOption struct{ since, text string }

// options returns the installer's arguments, spelled as its own table spells them, from the version
// that introduced each.
// Source: option_table.h in https://github.com/NVIDIA/nvidia-installer, and its history.
func (r runfile) options(kernel string, jobs int) (argv []string) {
	for _, o := range []installerOption{
		{"", "--silent"}, // asks nothing, and takes the default of each question
		{"", "--accept-license"},
		{"", "--no-x-check"},
		{"304.22", "--dkms"},
		{"346.16", "--concurrency-level=" + strconv.Itoa(jobs)},
		{"", "--no-nouveau-check"}, // the stage of the modules takes nouveau out
		{"", "--kernel-name=" + kernel},
		// A later stage replaces the loaded module and the initial file system: it knows the
		// processes that use the GPUs.
		{"545.23.06", "--allow-installation-with-running-driver"},
		{"545.23.06", "--no-rebuild-initramfs"},
		{"550.40.07", "--skip-module-load"},
		{"555.42.02", "--kernel-module-type=" + r.flavour},
	} {
		if o.since == "" || hardware.Compare(r.version, o.since) >= 0 {
			argv = append(argv, o.text)
		}
	}
	if r.flavour == FlavourOpen && hardware.Compare(r.version, "555.42.02") < 0 {
		argv = append(argv, "--kernel-module-build-directory=kernel-open")
	}
	return argv
}

// install runs the installer, and removes what a failed installer has left.
func (r runfile) install(ctx context.Context, h host.Host, file, kernel string) error {
	info, err := h.Stat(file)
	if err != nil {
		return err
	}
	for _, dir := range []string{"/tmp", "/usr"} {
		if err := roomAt(h, dir, unpacked*uint64(info.Size), "driver "+r.version); err != nil {
			return err
		}
	}
	start := h.Now()
	_, err = h.Do(ctx, append([]string{"sh", file}, r.options(kernel, kmod.BuildJobs(h))...)...)
	if err == nil {
		return nil
	}
	t := &trouble.Error{
		What:    fmt.Sprintf("cannot install driver %s: NVIDIA's installer failed", r.version),
		Because: lastWords(h, installerWords, start, err), Try: []string{"read " + installerWords}, Err: err,
	}
	if left, lookErr := ByInstaller(h); left != "" || lookErr != nil {
		if _, err := h.Do(context.WithoutCancel(ctx), "sh", file, "--uninstall", "--silent"); err != nil {
			t.Because = append(t.Because, fmt.Sprintf("and gpuadm could not remove what it left: %v", err))
		}
	}
	if err := h.Remove(file); err != nil {
		t.Because = append(t.Because, err.Error())
	}
	return t
}

// takeAway runs the uninstaller that the installer has installed.
func takeAway(ctx context.Context, h host.Host) error {
	if _, err := h.Lstat(uninstaller); errors.Is(err, fs.ErrNotExist) {
		return &trouble.Error{
			What: "cannot uninstall the driver that NVIDIA's installer has installed: " + uninstaller + " is gone",
			Try:  []string{"sh NVIDIA-Linux-….run --uninstall --silent, with a runfile of the same version"},
		}
	}
	start := h.Now()
	if _, err := h.Do(ctx, "nvidia-uninstall", "--silent"); err != nil {
		return &trouble.Error{
			What:    "cannot uninstall the driver that NVIDIA's installer has installed: its uninstaller failed",
			Because: lastWords(h, uninstallerWords, start, err), Try: []string{"read " + uninstallerWords}, Err: err,
		}
	}
	return nil
}

// lastWords returns why a command failed: the errors in its log, or else the last lines; and the
// error it ended with. A log that is older than the start is another run's.
func lastWords(v host.View, log string, start time.Time, err error) []string {
	var words []string
	data, readErr := v.ReadFile(log)
	info, statErr := v.Stat(log)
	if readErr == nil && statErr == nil && !info.Ctime.Before(start.Add(-time.Second)) { // a file's time is coarser
		var all []string
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); line == "" {
				continue
			}
			all = append(all, line)
			if strings.HasPrefix(line, "ERROR:") {
				words = append(words, line)
			}
		}
		if len(words) == 0 {
			words = all
		}
		words = words[max(0, len(words)-5):]
	}
	if ce := (*host.CommandError)(nil); errors.As(err, &ce) && ce.Stderr != "" {
		for line := range strings.Lines(ce.Stderr) {
			words = append(words, strings.TrimSpace(line))
		}
		words = words[max(0, len(words)-10):]
	}
	return words
}

// buildKernel returns the kernel that the installer builds for, whose headers must be installed;
// DKMS builds for the others.
func buildKernel(ctx context.Context, v host.View) (string, error) {
	f, err := facts.Gather(ctx, v, facts.Needs{})
	if err != nil {
		return "", err
	}
	for _, kernel := range append([]string{f.Kernel.Running}, f.Kernel.Targets(f.Live)...) {
		if _, err := v.Stat("/lib/modules/" + kernel + "/build/Makefile"); kernel != "" && err == nil {
			return kernel, nil
		}
	}
	return "", &trouble.Error{
		What: "cannot run NVIDIA's installer: none of the kernels that it could build for has its headers",
		Try:  []string{"install linux-headers-KERNEL (Debian, Ubuntu) or kernel-devel-KERNEL (RHEL) for one of " + strings.Join(f.Kernel.Targets(f.Live), ", ")},
	}
}

// sweep removes all installers but those of the two versions in keep.
func sweep(h host.Host, keep ...string) error {
	names, err := h.ReadDir(Runfiles)
	if err != nil {
		return err
	}
	for _, n := range names {
		version, _, _ := strings.Cut(n, "-")
		if strings.HasSuffix(n, ".run") && version != keep[0] && version != keep[1] {
			if err := h.Remove(path.Join(Runfiles, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// roomAt refuses a change that would fill the disk before it ends.
func roomAt(v host.View, dir string, need uint64, of string) error {
	room, err := v.Room(dir)
	if err != nil {
		return err
	}
	if room.Bytes < need {
		return &trouble.Error{
			What: fmt.Sprintf("cannot install %s: %s has %d MiB left, and %d MiB are needed", of, dir, room.Bytes>>20, need>>20),
			Try:  []string{"make room in " + dir},
		}
	}
	return nil
}

// noRunfile refuses packages beside a driver that NVIDIA's installer has installed.
func noRunfile() converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		is, err := ByInstaller(v)
		if err != nil || is == "" {
			return "", err
		}
		return fmt.Sprintf("cannot install packages of a driver: NVIDIA's installer has installed driver %s here, and the two would overwrite each other's files", is), nil
	}
	return things.Check("no driver beside the packages", look, "a driver comes from packages or from NVIDIA's installer, never from both",
		"nvidia-uninstall --silent, then apply again", `or write source = "runfile" in [driver], to go on with the installer`)
}

// PruneRunfiles removes the installers, VERSION-SHA256.run, of versions that none of the changes
// names. needed are the changes that undo may still revert.
func PruneRunfiles(_ context.Context, h host.Host, needed []converge.Change) error {
	names, _ := h.ReadDir(Runfiles) // empty if the folder is missing
	var errs []error
	for _, name := range names {
		version, _, _ := strings.Cut(name, "-")
		back := func(c converge.Change) bool {
			return c.Kind == (runfile{}).Ref().Kind && (versionIn(c.Before) == version || versionIn(c.After) == version)
		}
		if path.Ext(name) == ".run" && !slices.ContainsFunc(needed, back) {
			errs = append(errs, h.Remove(path.Join(Runfiles, name)))
		}
	}
	return host.Join(errs...)
}
