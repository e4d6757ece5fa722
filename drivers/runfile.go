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

// runfile is a driver that NVIDIA's own installer has put on the machine. There is one at most, so it has one name, and
// its state says which: "580.95.05 open", and after a comma what is wrong with it. What was installed is read from what
// the installer wrote about itself, and from its files; the .run file of each version we install is kept, so that undo can
// go back to it.
type runfile struct {
	version, flavour string
	url, sha256      string
	via              host.Via
}

const (
	// Runfiles is the folder where the installers lie: VERSION-SHA256.run.
	Runfiles = converge.Home + "/runfiles"
	// installerLog is where the installer says what it has installed, for its own uninstaller: BACKUP_LOG in backup.c of
	// https://github.com/NVIDIA/nvidia-installer.
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

// NewRunfile builds the thing again for undo, which takes the installers that were kept.
func NewRunfile(string) converge.Thing { return runfile{} }

func (r runfile) wanted() converge.State { return converge.State(r.version + " " + r.flavour) }

func (r runfile) Ref() converge.Ref { return converge.Ref{Kind: "runfile", Name: "nvidia"} }

// Look reads what is installed. In an image the installer runs as in any chroot: it is given the image's kernel, and then loads no module.
// Sources: get_kernel_name in kernel.c of nvidia-installer 580.65.06, and test_kernel_modules in 470.256.02;
// tools/osbuilder/rootfs-builder/nvidia/nvidia_chroot.sh of https://github.com/kata-containers/kata-containers, which runs it so.
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

// ByInstaller says which driver NVIDIA's installer has put here; "" if none. The first line of its log says the version,
// as "1.0-5809505 (580.95.05)": create_backwards_compatible_version_string in backup.c.
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

// libraryProblem checks whether the library by which all others talk to the driver is the one that was installed: a package
// may have taken its place. A line "1: PATH" is a file that was installed.
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
		is, err := v.Resolve(link) // of a link that is not there it says the name
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

// sourceFlavour is that of the modules' source, by the licence that it declares: the file was nv-frontend.c, and is nv.c.
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

// runfileOf is where a version's installer is kept; "" if it is not.
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

// Validate refuses what would end in a mix of two drivers, what has no way back, and what has no room.
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
	switch packages.Detect(v) {
	case "apt":
		argv = append([]string{"dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\\n"}, patterns...)
	case "dnf":
		argv = append([]string{"rpm", "--query", "--all", "--queryformat=installed %{NAME}\\n"}, patterns...)
	default:
		return nil, nil
	}
	out, err := v.Ask(ctx, argv...)
	if ce := (*host.CommandError)(nil); errors.As(err, &ce) && ce.Code == 1 {
		err = nil // dpkg-query: for one of the patterns there is none
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

// besideDriver says whether a package with the driver's words in its name brings none of its files: the container
// toolkit, and Debian's tools that tell which driver a GPU needs and that remove the installer's leftovers.
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
