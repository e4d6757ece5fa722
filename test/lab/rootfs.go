// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

// packages is what a host has. It is the key of the cached root filesystem together with recipe.
func packages() []string {
	return []string{
		"systemd", "systemd-sysv", "dbus", "udev", "libpam-systemd", // a machine with an init
		"apt", "apt-utils", "gpg", "gpgv", "ca-certificates", // that installs packages
		"containerd", "runc", "kmod", "iproute2", "iptables", // as a Kubernetes node has them
		"procps", "netbase", "login", "passwd", "less",
		"strace", "busybox-static", // for the tests: to trace gpuadm, and to make a container's image of
	}
}

// recipe changes with what buildRootfs does beside installing packages.
const recipe = "1"

func rootfsDir(dist string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	key := sha256.Sum256([]byte(recipe + " " + strings.Join(packages(), " ")))
	return filepath.Join(cache, fmt.Sprintf("%s-%x", dist, key[:6])), nil
}

// buildRootfs installs a distribution into a folder of the cache.
func buildRootfs(ctx context.Context, dist string, log func(string)) error {
	place, err := rootfsDir(dist)
	if err != nil {
		return err
	}
	return Cached(place, func(scratch string) error {
		mirror, err := parts.DebianMirror(ctx)
		if err != nil {
			return err
		}

		log("mmdebstrap " + dist)
		// No recommended packages: the hosts shall be small, and apt in them do as the tests say.
		_, err = parts.Run(ctx, "", nil, "mmdebstrap", "--quiet",
			"--variant=minbase", "--format=directory",
			"--include="+strings.Join(packages(), ","),
			"--keyring="+keyring,
			"--aptopt=APT::Install-Recommends \"false\"",
			dist, scratch, mirror)
		if err != nil {
			return err
		}

		for name, text := range map[string]string{
			"etc/hostname":   "node\n",
			"etc/hosts":      "127.0.0.1 localhost\n127.0.1.1 node\n",
			"etc/machine-id": "", // empty: systemd makes one at a host's first boot, see machine-id(5)
		} {
			if err := os.WriteFile(filepath.Join(scratch, name), []byte(text), 0o644); err != nil {
				return fmt.Errorf("cannot write %s: %w", name, err)
			}
		}

		return nil
	})
}
