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
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/kmod"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

const (
	installLog   = "/var/log/nvidia-installer.log" // of the installer's last run
	uninstallLog = "/var/log/nvidia-uninstall.log" // of the uninstaller's

	MaxRunfile  = 2 << 30   // bytes; those of 2026 have 0.4 GiB
	runfileSize = 512 << 20 // bytes; the assumed size of an installer before its download

	// unpacked is how many times its size an installer takes at most when it is unpacked, and again
	// when it is installed.
	unpacked = 4
)

// Make installs or uninstalls the version. The installer itself replaces a version that it
// installed earlier.
func (r runfile) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to == "" {
		return uninstall(ctx, h)
	}
	if to != r.wanted() {
		kept, err := keptRunfile(h, to)
		if err != nil {
			return err
		}
		r = kept
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
	return removeOthers(h, r.version, versionIn(before))
}

// keptRunfile returns the runfile of an earlier state, whose installer was kept.
func keptRunfile(v host.View, to converge.State) (runfile, error) {
	version := versionIn(to)
	_, flavour, _ := strings.Cut(string(to), " ")
	file, err := keptFile(v, version)
	if err != nil {
		return runfile{}, err
	}

	known := flavour == FlavourOpen || flavour == FlavourProprietary
	if file == "" || !known {
		return runfile{}, &trouble.Error{
			What: fmt.Sprintf("cannot install driver %s again: its runfile is not in %s", to, Runfiles),
			Try:  []string{"put version, url and sha256 of that runfile in node.toml, and apply"},
		}
	}

	_, sum, _ := strings.Cut(strings.TrimSuffix(path.Base(file), ".run"), "-")
	return runfile{
		version: version,
		flavour: flavour,
		url:     "file://" + file,
		sha256:  sum,
	}, nil
}

// fetch returns the installer in Runfiles after a check of its digest, also if the file was there
// already.
func (r runfile) fetch(ctx context.Context, h host.Host) (string, error) {
	file := path.Join(Runfiles, r.version+"-"+r.sha256+".run")
	found, err := packages.Digest(h, file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err == nil && found.SHA256 == r.sha256 {
		return file, nil
	}

	for _, dir := range []string{converge.Home, Runfiles} {
		err := h.Mkdir(dir, host.Attr{Mode: 0o700})
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}

	request := host.Request{
		URL:    r.url,
		SHA256: r.sha256,
		Max:    MaxRunfile,
		Via:    r.via,
	}
	if err := h.Download(ctx, request, file, host.Attr{Mode: 0o600}); err != nil {
		return "", &trouble.Error{
			What:    err.Error(),
			Because: []string{"nothing of it was run"},
			Try: []string{
				"compare sha256 in [driver.runfile] with what NVIDIA publishes for driver " + r.version + ", and url with where the file lies",
			},
			Err: err,
		}
	}

	return file, nil
}

// installerOption is an option that the installer knows from a version on; it refuses to run with
// an unknown option.
type installerOption struct {
	since string // the version that introduced it; "" if all known versions have it
	text  string
}

// options returns the installer's arguments, spelled as its own table spells them, from the version
// that introduced each.
// Source: option_table.h in https://github.com/NVIDIA/nvidia-installer, and its history.
func (r runfile) options(kernel string, jobs int) []string {
	all := []installerOption{
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

		{moduleTypeSince, "--kernel-module-type=" + r.flavour},
	}

	var argv []string
	for _, option := range all {
		if option.since == "" || hardware.Compare(r.version, option.since) >= 0 {
			argv = append(argv, option.text)
		}
	}

	if r.flavour == FlavourOpen && hardware.Compare(r.version, moduleTypeSince) < 0 {
		argv = append(argv, "--kernel-module-build-directory=kernel-open")
	}
	return argv
}

// moduleTypeSince is the version from which on an option names the modules' flavour.
const moduleTypeSince = "555.42.02"

// install runs the installer, and removes what a failed installer has left.
func (r runfile) install(ctx context.Context, h host.Host, file, kernel string) error {
	info, err := h.Stat(file)
	if err != nil {
		return err
	}
	for _, dir := range []string{"/tmp", "/usr"} {
		if err := checkRoom(h, dir, unpacked*uint64(info.Size), "driver "+r.version); err != nil {
			return err
		}
	}

	start := h.Now()
	argv := append([]string{"sh", file}, r.options(kernel, kmod.BuildJobs(h))...)
	_, err = h.Do(ctx, argv...)
	if err == nil {
		return nil
	}

	t := &trouble.Error{
		What:    fmt.Sprintf("cannot install driver %s: NVIDIA's installer failed", r.version),
		Because: causes(h, installLog, start, err),
		Try:     []string{"read " + installLog},
		Err:     err,
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

// uninstall runs the uninstaller that the installer has installed.
func uninstall(ctx context.Context, h host.Host) error {
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
			Because: causes(h, uninstallLog, start, err),
			Try:     []string{"read " + uninstallLog},
			Err:     err,
		}
	}

	return nil
}

// Most lines that causes returns.
const (
	mostLogLines = 5
	mostLines    = 10
)

// causes returns why a command failed: the errors in its log, or else the last lines; and what it
// wrote to its standard error.
func causes(v host.View, log string, start time.Time, err error) []string {
	lines := logErrors(v, log, start)
	ce := (*host.CommandError)(nil)
	if !errors.As(err, &ce) || ce.Stderr == "" {
		return lines
	}

	for line := range strings.Lines(ce.Stderr) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines[max(0, len(lines)-mostLines):]
}

// logErrors returns the errors in a log, or else its last lines; none if the log is older than the
// start, and so of another run.
func logErrors(v host.View, log string, start time.Time) []string {
	text, err := v.ReadFile(log)
	if err != nil {
		return nil
	}
	info, err := v.Stat(log)
	if err != nil || info.Ctime.Before(start.Add(-time.Second)) { // a file's time is coarser
		return nil
	}

	var all, failures []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" {
			all = append(all, line)
		}
		if strings.HasPrefix(line, "ERROR:") {
			failures = append(failures, line)
		}
	}

	if len(failures) == 0 {
		failures = all
	}
	return failures[max(0, len(failures)-mostLogLines):]
}

// buildKernel returns the kernel that the installer builds for, whose headers must be installed;
// DKMS builds for the others.
func buildKernel(ctx context.Context, v host.View) (string, error) {
	f, err := facts.Gather(ctx, v, facts.Needs{})
	if err != nil {
		return "", err
	}

	targets := f.Kernel.Targets(f.Live)
	for _, kernel := range append([]string{f.Kernel.Running}, targets...) {
		if kernel == "" {
			continue
		}
		if _, err := v.Stat("/lib/modules/" + kernel + "/build/Makefile"); err == nil {
			return kernel, nil
		}
	}

	return "", &trouble.Error{
		What: "cannot run NVIDIA's installer: none of the kernels that it could build for has its headers",
		Try:  []string{"install linux-headers-KERNEL (Debian, Ubuntu) or kernel-devel-KERNEL (RHEL) for one of " + strings.Join(targets, ", ")},
	}
}

// removeOthers removes the kept installers of all versions but those in keep.
func removeOthers(h host.Host, keep ...string) error {
	names, err := h.ReadDir(Runfiles)
	if err != nil {
		return err
	}

	for _, name := range names {
		version, _, _ := strings.Cut(name, "-")
		if !strings.HasSuffix(name, ".run") || slices.Contains(keep, version) {
			continue
		}
		if err := h.Remove(path.Join(Runfiles, name)); err != nil {
			return err
		}
	}

	return nil
}

// checkRoom refuses a change that would fill the disk before it ends. need is in bytes.
func checkRoom(v host.View, dir string, need uint64, what string) error {
	room, err := v.Room(dir)
	if err != nil {
		return err
	}
	if room.Bytes >= need {
		return nil
	}
	return &trouble.Error{
		What: fmt.Sprintf("cannot install %s: %s has %d MiB left, and %d MiB are needed", what, dir, room.Bytes>>20, need>>20),
		Try:  []string{"make room in " + dir},
	}
}

// noRunfile refuses packages of a driver where NVIDIA's installer has installed one.
func noRunfile() converge.Want {
	look := func(_ context.Context, v host.View) (string, error) {
		state, err := ByInstaller(v)
		if err != nil || state == "" {
			return "", err
		}
		return fmt.Sprintf("cannot install packages of a driver: NVIDIA's installer has installed driver %s here, and the two would overwrite each other's files", state), nil
	}

	const why = "a driver comes from packages or from NVIDIA's installer, never from both"
	return things.Check("no driver beside the packages", look, why,
		"nvidia-uninstall --silent, then apply again",
		`or write source = "runfile" in [driver], to go on with the installer`)
}

// PruneRunfiles removes the installers, VERSION-SHA256.run, of versions that none of the changes
// names. needed are the changes that undo may still revert.
func PruneRunfiles(_ context.Context, h host.Host, needed []converge.Change) error {
	var keep []string
	for _, change := range needed {
		if change.Kind == (runfile{}).Ref().Kind {
			keep = append(keep, versionIn(change.Before), versionIn(change.After))
		}
	}

	names, _ := h.ReadDir(Runfiles) // empty if the folder is missing
	var errs []error
	for _, name := range names {
		version, _, _ := strings.Cut(name, "-")
		if path.Ext(name) == ".run" && !slices.Contains(keep, version) {
			errs = append(errs, h.Remove(path.Join(Runfiles, name)))
		}
	}

	return host.Join(errs...)
}
