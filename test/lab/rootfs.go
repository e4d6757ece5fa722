// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

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
		_, err = parts.Run(ctx, "", nil, "mmdebstrap", "--quiet", "--variant=minbase", "--format=directory",
			"--include="+strings.Join(packages(), ","), "--keyring="+keyring,
			"--aptopt=APT::Install-Recommends \"false\"", dist, scratch, mirror)
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

// Cached makes a folder of the cache once, all or nothing, also with several processes at it: build
// fills a scratch folder beside it, which is then renamed.
func Cached(place string, build func(scratch string) error) error {
	dir, name := filepath.Split(place)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot make the cache folder: %w", err)
	}
	there := func() bool { _, err := os.Stat(place); return err == nil }
	if there() {
		return nil
	}
	lock, err := parts.Lock(filepath.Join(dir, "."+name+".lock"), syscall.LOCK_EX)
	if err != nil {
		return fmt.Errorf("cannot lock the cache entry: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if there() { // another process was faster
		return nil
	}
	scratch := filepath.Join(dir, "."+name)
	if err := os.RemoveAll(scratch); err != nil { // of a process that was killed: we hold the lock
		return fmt.Errorf("cannot clear the scratch folder: %w", err)
	}
	if err := os.Mkdir(scratch, 0o755); err != nil {
		return fmt.Errorf("cannot make the scratch folder: %w", err)
	}
	if err := build(scratch); err != nil {
		return errors.Join(err, os.RemoveAll(scratch))
	}
	if err := os.Rename(scratch, place); err != nil {
		return fmt.Errorf("cannot put the cache entry in place: %w", err)
	}
	return nil
}

// Chroot is a root filesystem, not booted, in which the programs of a distribution build things.
type Chroot struct {
	// Root is where it lies while it is there.
	Root string
}

// InChroot lays a folder over a distribution's layers, the topmost first, and calls do. What do's
// programs write ends up in the folder upper, which is on the cache's file system; the layers do
// not change.
func InChroot(layers []string, upper string, do func(Chroot) error) (err error) {
	return onDisk(layers, upper, func(root string) (err error) {
		mounts := []struct {
			what, where, kind string
			flags             uintptr
		}{
			{"proc", filepath.Join(root, "proc"), "proc", 0},
			{"/sys", filepath.Join(root, "sys"), "", syscall.MS_BIND},
			{"/dev", filepath.Join(root, "dev"), "", syscall.MS_BIND},
		}
		for _, m := range mounts {
			if err := syscall.Mount(m.what, m.where, m.kind, m.flags, ""); err != nil {
				return fmt.Errorf("cannot mount %s for a chroot: %w", m.what, err)
			}
			defer func() { err = errors.Join(err, syscall.Unmount(m.where, syscall.MNT_DETACH)) }()
		}
		return do(Chroot{root})
	})
}

// OnDisk lays a folder over the disk that a host of these options has, and calls do with the root
// folder of both: nothing of it runs. A host with the folder as Options.Over then boots what do has
// made.
func OnDisk(o Options, upper string, do func(root string) error) error {
	layers, err := layersOf(o)
	if err != nil {
		return err
	}
	return onDisk(layers, upper, func(root string) error {
		if o.Dist == RHELish {
			for _, name := range debianTools() {
				if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
					return fmt.Errorf("cannot hide %s: %w", name, err)
				}
			}
		}
		return do(root)
	})
}

// onDisk mounts an overlay and calls do.
func onDisk(layers []string, upper string, do func(root string) error) (err error) {
	side, err := os.MkdirTemp(filepath.Dir(upper), ".chroot-")
	if err != nil {
		return fmt.Errorf("cannot make a chroot's folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(side)) }()
	root, work := filepath.Join(side, "root"), filepath.Join(side, "work")
	for _, dir := range []string{root, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("cannot make a chroot's folder: %w", err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", strings.Join(layers, ":"), upper, work)
	if err := syscall.Mount("overlay", root, "overlay", 0, options); err != nil {
		return fmt.Errorf("cannot mount a disk: %w", err)
	}
	defer func() { err = errors.Join(err, syscall.Unmount(root, syscall.MNT_DETACH)) }()
	return do(root)
}

// Run runs a command in the chroot, as root, with this machine's network, and returns its standard
// output.
func (c Chroot) Run(ctx context.Context, env []string, argv ...string) ([]byte, error) {
	name, err := exec.LookPath("chroot")
	if err != nil {
		return nil, fmt.Errorf("cannot find chroot: %w", err)
	}
	env = append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8",
		"DEBIAN_FRONTEND=noninteractive",
	}, env...)
	return parts.Run(ctx, "", env, name, append([]string{c.Root}, argv...)...)
}

// install installs packages from the distribution's archive, and leaves no trace of having asked
// it.
func (c Chroot) install(ctx context.Context, packages []string) error {
	resolv := filepath.Join(c.Root, "etc", "resolv.conf")
	before, readErr := os.ReadFile(resolv)
	if now, err := os.ReadFile("/etc/resolv.conf"); err == nil {
		if err := os.WriteFile(resolv, now, 0o644); err != nil {
			return fmt.Errorf("cannot give the chroot a resolver: %w", err)
		}
	}
	defer func() {
		_ = os.Remove(resolv)
		if readErr == nil {
			_ = os.WriteFile(resolv, before, 0o644)
		}
	}()
	for _, argv := range [][]string{
		{"apt-get", "-q", "update"},
		slices.Concat([]string{"apt-get", "-q", "-y", "--no-install-recommends", "install"}, packages),
		{"apt-get", "clean"},
	} {
		if _, err := c.Run(ctx, nil, argv...); err != nil {
			return err
		}
	}
	lists, err := filepath.Glob(filepath.Join(c.Root, "var/lib/apt/lists/*_*"))
	for _, list := range lists {
		err = errors.Join(err, os.RemoveAll(list))
	}
	return err
}
