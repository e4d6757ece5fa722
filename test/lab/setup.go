// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

// tool is a program of this machine that the lab runs, and Debian's package that has it.
type tool struct {
	program string
	deb     string
}

func tools() []tool {
	return []tool{
		{"systemd-nspawn", "systemd-container"},
		{"nsenter", "util-linux"},
		{"mmdebstrap", "mmdebstrap"},
		{"gpgv", "gpgv"},
		{"apt-ftparchive", "apt-utils"}, // these make package repositories: package repos
		{"gpg", "gpg"},
		{"gpg-agent", "gpg-agent"},
		{"hyperfine", "hyperfine"}, // TestLabConvergedRatio
	}
}

// keyring proves that what is fetched comes from Debian; its package is called as the file.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// setupStep is one thing that Setup puts in place.
type setupStep struct {
	what string
	do   func(context.Context, func(string)) error
}

// setupSteps makes a step for each of some names.
func setupSteps(
	what string, names []string, build func(context.Context, string, func(string)) error,
) []setupStep {
	var steps []setupStep
	for _, name := range names {
		do := func(ctx context.Context, log func(string)) error {
			return build(ctx, name, log)
		}
		steps = append(steps, setupStep{what + " " + name, do})
	}

	return steps
}

// Setup puts in place all that Boot needs: programs from the machine's own package archive, the
// root filesystems, and the containerds that can be put in. It leaves what exists already alone.
// log gets what is done and how long it took.
func Setup(ctx context.Context, log func(string)) error {
	if os.Getuid() != 0 {
		return errors.New("cannot set up the lab: it needs root")
	}

	steps := slices.Concat(
		[]setupStep{{"programs", installTools}},
		setupSteps("root filesystem", Dists(), buildRootfs),
		setupSteps("RHEL's packager on", []string{"trixie"}, rhelLayer().build),
		setupSteps("headers for", Dists(), headersLayer().build),
		setupSteps("kubelet's needs on", Dists(), kubeletLayer().build),
		setupSteps("Docker on", []string{dockerDist}, dockerLayer().build),
		setupSteps("SSH on", []string{sshDist}, sshLayer().build),
		setupSteps("cloud-init on", []string{cloudInitDist}, cloudInitLayer().build),
		setupSteps("containerd", Engines(), buildEngine),
	)
	for _, step := range steps {
		began := time.Now()
		err := step.do(ctx, func(line string) { log("  " + line) })
		if err != nil {
			return fmt.Errorf("cannot set up the lab: %s: %w", step.what, err)
		}
		took := time.Since(began).Round(100 * time.Millisecond)
		log(fmt.Sprintf("%-26s there after %s", step.what, took))
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

// missingTool names the first program for Boot that is not installed.
func missingTool() error {
	for _, t := range tools()[:2] { // the others serve Setup alone
		if _, err := exec.LookPath(t.program); err != nil {
			return errMissing{"cannot find the program " + t.program}
		}
	}
	return nil
}
