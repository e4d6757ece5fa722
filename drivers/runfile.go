// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// runfile is a driver that NVIDIA's own installer has installed. A machine has at most one, so the
// thing has one name, and its state is the version: "580.95.05 open", and after a comma a fault.
// gpuadm reads the state from the installer's log and from the installed files. It keeps the .run
// file of each version that it installs, so that undo can reinstall that version.
type runfile struct {
	version, flavour string
	url, sha256      string
	via              host.Via
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
	r := runfile{c.Version, c.Flavour, c.Repo.URL, sha256, via}
	return converge.Want{
		Thing:  r,
		Why:    "NVIDIA's own installer; to run it is to accept NVIDIA's licence",
		Brings: []string{r.Ref().Name},
		To:     func(converge.State) (converge.State, error) { return r.wanted(), nil },
	}
}

// NewRunfile builds the thing for undo, which uses the kept installers.
func NewRunfile(string) converge.Thing { return runfile{} }

func (r runfile) wanted() converge.State { return converge.State(r.version + " " + r.flavour) }

func (r runfile) Ref() converge.Ref { return converge.Ref{Kind: "runfile", Name: "nvidia"} }

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
	} else if err != nil {
		return "", err
	}
	first, files, _ := strings.Cut(string(log), "\n")
	m := loggedVersion().FindStringSubmatch(strings.TrimSpace(first))
	if m == nil {
		return "unknown, " + installerLog + " does not say which", nil
	}
	state := m[1]
	if flavour, err := sourceFlavour(v, m[1]); err != nil {
		return "", err
	} else if flavour != "" {
		state += " " + flavour
	}
	for _, whole := range []func(host.View, string, string) (string, error){libraryProblem, uninstallerProblem} {
		if problem, err := whole(v, m[1], files); err != nil || problem != "" {
			return converge.State(state + ", " + problem), err
		}
	}
	return converge.State(state), nil
}

// libraryProblem checks that the library by which all others talk to the driver is still the
// installer's: a package may have replaced it. A line "1: PATH" of the log names an installed file.
func libraryProblem(v host.View, version, files string) (string, error) {
	for line := range strings.Lines(files) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if number != "1" || path.Base(name) != "libnvidia-ml.so."+version || strings.Contains(name, "32") || strings.Contains(name, "i386") {
			continue
		}
		if _, err := v.Stat(name); errors.Is(err, fs.ErrNotExist) {
			return name + " is gone", nil
		} else if err != nil {
			return "", err
		}
		link := path.Dir(name) + "/libnvidia-ml.so.1"
		is, err := v.Resolve(link) // for a missing link it returns the name
		switch {
		case err != nil || is == link:
			return link + " is gone", nil
		case path.Base(is) != path.Base(name):
			return link + " leads to " + path.Base(is), nil
		}
		return "", nil
	}
	return "no libnvidia-ml.so." + version + " was installed", nil
}

func uninstallerProblem(v host.View, _, _ string) (string, error) {
	if _, err := v.Lstat(uninstaller); errors.Is(err, fs.ErrNotExist) {
		return uninstaller + " is gone", nil
	} else if err != nil {
		return "", err
	}
	return "", nil
}

// sourceFlavour returns the flavour of the modules' source, by the licence that nv.c declares, or
// nv-frontend.c in older versions.
// Source: kernel-open/nvidia of https://github.com/NVIDIA/open-gpu-kernel-modules.
func sourceFlavour(v host.View, version string) (string, error) {
	for _, name := range []string{"nv-frontend.c", "nv.c"} {
		text, err := v.ReadFile("/usr/src/nvidia-" + version + "/nvidia/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return "", err
		}
		if m := sourceLicense().FindSubmatch(text); m != nil {
			return facts.ModuleFile{License: string(m[1])}.Flavour(), nil
		}
	}
	return "", nil
}

// runfileOf returns the path of a version's kept installer; "" if there is none.
func runfileOf(v host.View, version string) (string, error) {
	names, err := v.ReadDir(Runfiles)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, n := range names {
		if of, _, _ := strings.Cut(n, "-"); of == version && strings.HasSuffix(n, ".run") {
			return path.Join(Runfiles, n), nil
		}
	}
	return "", nil
}

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
	if was := versionIn(before); was != "" && was != r.version {
		if kept, err := runfileOf(v, was); err != nil {
			return err
		} else if kept == "" {
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
			Try:     []string{"remove the packages", `or write source = "auto" in [driver], to go on with packages`},
		}
	}
	return roomAt(v, Runfiles, runfileSize, "NVIDIA's installer")
}

// driverPackages names the driver's packages that are installed.
func driverPackages(ctx context.Context, v host.View) ([]string, error) {
	var argv []string
	patterns := []string{"nvidia-*", "libnvidia-*", "xserver-xorg-video-nvidia*", "cuda-drivers*", "kmod-nvidia*"}
	switch facts.DatabaseOf(v) {
	case "dpkg":
		argv = append([]string{"dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\\n"}, patterns...)
	case "rpm":
		argv = append([]string{"rpm", "--query", "--all", "--queryformat=installed %{NAME}\\n"}, patterns...)
	default:
		return nil, nil
	}
	out, err := v.Ask(ctx, argv...)
	if ce := (*host.CommandError)(nil); errors.As(err, &ce) && ce.Code == 1 {
		err = nil // dpkg-query fails if one of the patterns matches no package
	}
	if errors.As(err, new(host.Later)) {
		return nil, nil
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		state, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if state == "installed" && !besideDriver(name) {
			names = append(names, name)
		}
	}
	return names, err
}

// besideDriver says whether a package is named like the driver's but has none of its files: the
// container toolkit, and Debian's tools that name the driver for a GPU and that remove the
// installer's leftovers.
func besideDriver(name string) bool {
	for _, part := range []string{"container", "nvidia-detect", "nvidia-support", "nvidia-installer-cleanup", "nvidia-gds", "nvidia-fs"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// digestOf is the SHA-256 of a file, which may be larger than ReadFile takes.
func digestOf(v host.View, name string) (string, error) {
	is, err := packages.Digest(v, name)
	return is.SHA256, err
}
