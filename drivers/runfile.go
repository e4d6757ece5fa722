// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// runfile is a driver that NVIDIA's own installer has installed. A machine has at most one, so the
// thing has one name, and its state is the version: "580.95.05 open", and after a comma a fault.
// gpuadm reads the state from the installer's log and from the installed files. It keeps the .run
// file of each version that it installs, so that undo can reinstall that version.
type runfile struct {
	version string
	flavour string
	url     string
	sha256  string // of the file
	via     host.Via
}

const (
	// Runfiles is the folder of the kept installers: VERSION-SHA256.run.
	Runfiles = converge.Home + "/runfiles"
	// installerLog is where the installer records what it has installed, for its uninstaller:
	// BACKUP_LOG in backup.c of https://github.com/NVIDIA/nvidia-installer.
	installerLog = "/var/lib/nvidia/log"
	uninstaller  = "/usr/bin/nvidia-uninstall"
)

// RunfileWant wants the driver installed by NVIDIA's installer.
func RunfileWant(c Choice, sha256 string, via host.Via) converge.Want {
	r := runfile{
		version: c.Version,
		flavour: c.Flavour,
		url:     c.Repo.URL,
		sha256:  sha256,
		via:     via,
	}
	return converge.Want{
		Thing:  r,
		Why:    "NVIDIA's own installer; to run it is to accept NVIDIA's licence",
		Brings: []string{r.Ref().Name},
		To:     func(converge.State) (converge.State, error) { return r.wanted(), nil },
	}
}

// NewRunfile builds the thing for undo, which uses the kept installers.
func NewRunfile(string) converge.Thing { return runfile{} }

func (r runfile) wanted() converge.State {
	return converge.State(r.version + " " + r.flavour)
}

func (r runfile) Ref() converge.Ref {
	return converge.Ref{Kind: "runfile", Name: "nvidia"}
}

// Look reads what is installed. In an image gpuadm names the image's kernel to the installer, which
// then loads no module, as in any chroot.
// Sources: get_kernel_name in kernel.c of nvidia-installer 580.65.06, and test_kernel_modules in
// 470.256.02; tools/osbuilder/rootfs-builder/nvidia/nvidia_chroot.sh of
// https://github.com/kata-containers/kata-containers, which runs it so.
func (r runfile) Look(_ context.Context, v host.View) (converge.State, error) {
	state, err := ByInstaller(v)
	if err == nil && !v.Runs() && state != r.wanted() {
		return "", host.FirstBoot // nothing can be built there
	}
	return state, err
}

var (
	loggedVersion = pattern.Of(`^(?:1\.0-[0-9]+ \()?([0-9]+(?:\.[0-9]+)+)\)?$`)
	sourceLicense = pattern.Of(`MODULE_LICENSE\("([^"]*)"\)`)
)

// ByInstaller says which driver NVIDIA's installer has installed; "" if none. The first line of its
// log has the version, as "1.0-5809505 (580.95.05)": create_backwards_compatible_version_string in
// backup.c.
func ByInstaller(v host.View) (converge.State, error) {
	log, err := v.ReadFile(installerLog)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}

	first, files, _ := strings.Cut(string(log), "\n")
	match := loggedVersion().FindStringSubmatch(strings.TrimSpace(first))
	if match == nil {
		return "unknown, " + installerLog + " does not say which", nil
	}
	version := match[1]
	flavour, err := sourceFlavour(v, version)
	if err != nil {
		return "", err
	}
	state := version
	if flavour != "" {
		state += " " + flavour
	}

	problem, err := libraryProblem(v, version, files)
	if err == nil && problem == "" {
		problem, err = uninstallerProblem(v)
	}
	if problem != "" {
		state += ", " + problem
	}
	return converge.State(state), err
}

// libraryProblem checks that the library by which all others talk to the driver is still the
// installer's: a package may have replaced it. files are the lines of the log after the first.
func libraryProblem(v host.View, version, files string) (string, error) {
	name := loggedLibrary(version, files)
	if name == "" {
		return "no libnvidia-ml.so." + version + " was installed", nil
	}

	_, err := v.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return name + " is gone", nil
	}
	if err != nil {
		return "", err
	}

	link := path.Dir(name) + "/libnvidia-ml.so.1"
	target, err := v.Resolve(link) // for a missing link it returns the name
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && target == link:
		return link + " is gone", nil
	case err != nil:
		return "", err
	case path.Base(target) != path.Base(name):
		return link + " leads to " + path.Base(target), nil
	}

	return "", nil
}

// loggedLibrary returns the 64-bit NVML library that the installer has installed, "" if its log
// names none. A line "1: PATH" of the log names an installed file.
func loggedLibrary(version, files string) string {
	for line := range strings.Lines(files) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if number != "1" || path.Base(name) != "libnvidia-ml.so."+version {
			continue
		}

		folder := path.Dir(name) // the version may have a 32 too: 460.32.03
		is32 := strings.Contains(folder, "32") || strings.Contains(folder, "i386")
		if !is32 {
			return name
		}
	}
	return ""
}

func uninstallerProblem(v host.View) (string, error) {
	_, err := v.Lstat(uninstaller)
	if errors.Is(err, fs.ErrNotExist) {
		return uninstaller + " is gone", nil
	}
	return "", err
}

// sourceFlavour returns the flavour of the modules' source, by the licence that nv.c declares, or
// nv-frontend.c in older versions.
// Source: kernel-open/nvidia of https://github.com/NVIDIA/open-gpu-kernel-modules.
func sourceFlavour(v host.View, version string) (string, error) {
	for _, name := range []string{"nv-frontend.c", "nv.c"} {
		text, err := v.ReadFile("/usr/src/nvidia-" + version + "/nvidia/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if match := sourceLicense().FindSubmatch(text); match != nil {
			return modinfo.Module{License: string(match[1])}.Flavour(), nil
		}
	}
	return "", nil
}

// keptFile returns the path of a version's kept installer; "" if there is none.
func keptFile(v host.View, version string) (string, error) {
	names, err := v.ReadDir(Runfiles)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}

	for _, name := range names {
		if strings.HasPrefix(name, version+"-") && strings.HasSuffix(name, ".run") {
			return path.Join(Runfiles, name), nil
		}
	}

	return "", nil
}

// versionIn returns the version of a state: 580.95.05 of "580.95.05 open".
func versionIn(state converge.State) string {
	version, _, _ := strings.Cut(string(state), " ")
	return strings.TrimSuffix(version, ",")
}

// Validate refuses a change that would mix two drivers, that gpuadm could not roll back, or that
// does not fit on the disk.
func (r runfile) Validate(ctx context.Context, v host.View, before, after converge.State) error {
	if after == "" {
		return nil
	}

	was := versionIn(before)
	if was != "" && was != r.version {
		kept, err := keptFile(v, was)
		if err != nil {
			return err
		}
		if kept == "" {
			return &trouble.Error{
				What: fmt.Sprintf("cannot install driver %s in place of %s: that one was installed with NVIDIA's installer outside gpuadm, and gpuadm could not roll back to it", r.version, was),
				Try:  []string{"nvidia-uninstall --silent, then apply again"},
			}
		}
	}

	names, err := driverPackages(ctx, v)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return &trouble.Error{
			What:    fmt.Sprintf("cannot install driver %s with NVIDIA's installer: packages of a driver are installed, and the two would overwrite each other's files", r.version),
			Because: []string{"installed: " + strings.Join(names, ", ")},
			Try: []string{
				"remove the packages",
				`or write source = "auto" in [driver], to go on with packages`,
			},
		}
	}

	return checkRoom(v, Runfiles, runfileSize, "NVIDIA's installer")
}

// driverPackages names the driver's packages that have files on the disk. A package that dpkg
// has not wholly installed has files, too: dpkg(1), "Package states".
func driverPackages(ctx context.Context, v host.View) ([]string, error) {
	var argv []string
	patterns := []string{
		"nvidia-*", "libnvidia-*", "xserver-xorg-video-nvidia*",
		"cuda-drivers*", "kmod-nvidia*",
	}
	database := facts.DatabaseOf(v)
	switch database {
	case "dpkg":
		argv = []string{"dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\\n"}
	case "rpm":
		argv = []string{"rpm", "--query", "--all", "--queryformat=installed %{NAME}\\n"}
	default:
		return nil, nil
	}

	out, err := v.Ask(ctx, append(argv, patterns...)...)
	var failed *host.CommandError
	if database == "dpkg" && errors.As(err, &failed) && failed.Code == 1 {
		err = nil // one of the patterns matches no package: dpkg-query(1), EXIT STATUS
	}
	if errors.As(err, new(host.Later)) {
		return nil, nil
	}

	withoutFiles := []string{"", "not-installed", "config-files"}
	var names []string
	for line := range strings.Lines(string(out)) {
		state, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !slices.Contains(withoutFiles, state) && !onlyNamedAlike(name) {
			names = append(names, name)
		}
	}

	return names, err
}

// onlyNamedAlike says whether a package is named like the driver's but has none of its files: the
// container toolkit, and Debian's tools that name the driver for a GPU and that remove the
// installer's leftovers.
func onlyNamedAlike(name string) bool {
	parts := []string{
		"container", "nvidia-detect", "nvidia-support",
		"nvidia-installer-cleanup", "nvidia-gds", "nvidia-fs",
	}
	return slices.ContainsFunc(parts, func(part string) bool {
		return strings.Contains(name, part)
	})
}
