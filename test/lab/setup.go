// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// Setup puts in place all that Boot needs: programs from the machine's own package archive, the root filesystems, and
// the containerds that can be put in. What is there already is left alone. log gets what is done and how long it took.
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

// buildEngine makes a layer with a containerd, its ctr and its shim, which lies over a root filesystem's own.
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
