// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

// tool is a program of this machine that the lab runs, and Debian's package that has it.
type tool struct{ program, deb string }

func tools() []tool {
	return []tool{
		{"systemd-nspawn", "systemd-container"},
		{"nsenter", "util-linux"},
		{"mmdebstrap", "mmdebstrap"},
		{"gpgv", "gpgv"},
		{"apt-ftparchive", "apt-utils"}, // these make package repositories: package repos
		{"gpg", "gpg"},
		{"gpg-agent", "gpg-agent"},
	}
}

// keyring proves that what is fetched comes from Debian; its package is called as the file.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Setup puts in place all that Boot needs: programs from the machine's own package archive, the
// root filesystems, and the containerds that can be put in. What is there already is left alone.
// log gets what is done and how long it took.
func Setup(ctx context.Context, log func(string)) error {
	if os.Getuid() != 0 {
		return errors.New("cannot set up the lab: it needs root")
	}
	type step struct {
		what string
		do   func(context.Context, func(string)) error
	}
	each := func(steps []step, what string, names []string, build func(context.Context, string, func(string)) error) []step {
		for _, name := range names {
			steps = append(steps, step{what + " " + name, func(ctx context.Context, log func(string)) error { return build(ctx, name, log) }})
		}
		return steps
	}
	steps := []step{{"programs", installTools}}
	steps = each(steps, "root filesystem", Dists(), buildRootfs)
	steps = each(steps, "RHEL's packager on", []string{"trixie"}, rhelLayer().build)
	steps = each(steps, "headers for", Dists(), headersLayer().build)
	steps = each(steps, "kubelet's needs on", Dists(), kubeletLayer().build)
	steps = each(steps, "Docker on", []string{dockerDist}, dockerLayer().build)
	steps = each(steps, "SSH on", []string{sshDist}, sshLayer().build)
	steps = each(steps, "containerd", Engines(), buildEngine)
	for _, s := range steps {
		began := time.Now()
		err := s.do(ctx, func(line string) { log("  " + line) })
		took := time.Since(began).Round(100 * time.Millisecond)
		if err != nil {
			return fmt.Errorf("cannot set up the lab: %s: %w", s.what, err)
		}
		log(fmt.Sprintf("%-26s there after %s", s.what, took))
	}
	return nil
}

// installTools installs the packages of the programs that are missing, and says so.
func installTools(ctx context.Context, log func(string)) error {
	var debs []string
	for _, t := range tools() {
		if _, err := exec.LookPath(t.program); err != nil {
			debs = append(debs, t.deb)
		}
	}
	if _, err := os.Stat(keyring); err != nil {
		debs = append(debs, strings.TrimSuffix(filepath.Base(keyring), ".gpg"))
	}
	if len(debs) == 0 {
		return nil
	}
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	log("apt-get update")
	if _, err := parts.Run(ctx, "", env, "apt-get", "-q", "update"); err != nil {
		return err
	}
	install := append([]string{"-q", "-y", "install", "--no-install-recommends"}, debs...)
	log("apt-get " + strings.Join(install[2:], " "))
	_, err := parts.Run(ctx, "", env, "apt-get", install...)
	return err
}

// missingTool names the first program that is not there.
func missingTool() error {
	for _, t := range tools()[:2] { // the others serve Setup alone
		if _, err := exec.LookPath(t.program); err != nil {
			return errMissing{"cannot find the program " + t.program}
		}
	}
	return nil
}

// buildEngine makes a layer with a containerd, its ctr and its shim, which lies over a root
// filesystem's own.
func buildEngine(ctx context.Context, name string, log func(string)) error {
	var fetched error
	err := parts.Fetch(ctx, func(s parts.Step) {
		if !s.Cached && s.Err == nil {
			log(fmt.Sprintf("built containerd %s in %s", s.Part.Version, s.Took.Round(time.Second)))
		}
		fetched = s.Err
	}, name)
	if err = errors.Join(err, fetched); err != nil {
		return err
	}
	part, err := parts.Find(name)
	if err != nil {
		return err
	}
	place, err := engineDir(part)
	if err != nil {
		return err
	}
	return Cached(place, func(scratch string) error {
		bin := filepath.Join(scratch, "usr", "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			return err
		}
		log("building it with its ctr and shim")
		if err := buildPrograms(ctx, part.Version, bin); err != nil {
			return err
		}
		// dpkg must not claim that this containerd is its package's: tools read the version there.
		info := filepath.Join(scratch, "var", "lib", "dpkg", "info")
		if err := os.MkdirAll(info, 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(info, "containerd.list"), []byte("/.\n"), 0o644)
	})
}

// engineRecipe changes with what buildEngine does.
const engineRecipe = "2"

// engineDir is where the layer of a containerd lies.
func engineDir(part parts.Part) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, fmt.Sprintf("containerd-%s-%s-%s-%s", part.Version, engineRecipe, runtime.Version(), runtime.GOARCH)), nil
}

// engineLayer finds the layer of a containerd for Boot.
func engineLayer(name string) (string, error) {
	part, err := parts.Find(name)
	if err != nil {
		return "", errMissing{err.Error()}
	}
	place, err := engineDir(part)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(place); err != nil {
		return "", errMissing{"cannot find ctr and shim of containerd " + part.Version}
	}
	return place, nil
}

// buildPrograms builds the daemon, its client and its shim. The binary of test/containerd/parts is
// not taken: unlike the project's own, it has no version in its build information.
func buildPrograms(ctx context.Context, version, bin string) error {
	const module = "github.com/containerd/containerd/v2"
	scratch, err := os.MkdirTemp("", "gpuadm-lab-*")
	if err != nil {
		return fmt.Errorf("cannot make a scratch folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	src, err := parts.CopyModule(ctx, scratch, module+"@v"+version)
	if err != nil {
		return err
	}
	_, err = parts.Run(ctx, src, parts.ModuleEnv("CGO_ENABLED=0"), "go", "build", "-o", bin+"/",
		// As its Makefile does; the snapshotters left out need C libraries.
		fmt.Sprintf("-ldflags=-s -w -X %[1]s/version.Version=v%s -X %[1]s/version.Package=%[1]s", module, version),
		"-tags=no_btrfs,no_devmapper,no_zfs,no_aufs",
		"./cmd/containerd", "./cmd/ctr", "./cmd/containerd-shim-runc-v2")
	return err
}
