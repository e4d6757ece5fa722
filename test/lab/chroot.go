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
	"syscall"

	"github.com/gpuadm/gpuadm/test/containerd/parts"
)

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
			defer func() {
				err = errors.Join(err, syscall.Unmount(m.where, syscall.MNT_DETACH))
			}()
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
		if o.Dist != RHELish {
			return do(root)
		}
		for _, name := range debianTools() {
			if err := os.RemoveAll(filepath.Join(root, name)); err != nil {
				return fmt.Errorf("cannot hide %s: %w", name, err)
			}
		}

		return do(root)
	})
}

// onDisk mounts an overlay and calls do.
func onDisk(layers []string, upper string, do func(root string) error) (err error) {
	folder, err := os.MkdirTemp(filepath.Dir(upper), ".chroot-")
	if err != nil {
		return fmt.Errorf("cannot make a chroot's folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()

	root := filepath.Join(folder, "root")
	work := filepath.Join(folder, "work")
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
	restore, err := c.borrowResolver()
	if err != nil {
		return err
	}
	defer restore()

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

// borrowResolver gives the chroot this machine's name servers until restore.
func (c Chroot) borrowResolver() (restore func(), err error) {
	file := filepath.Join(c.Root, "etc", "resolv.conf")
	before, readErr := os.ReadFile(file)
	if servers, err := os.ReadFile("/etc/resolv.conf"); err == nil {
		if err := os.WriteFile(file, servers, 0o644); err != nil {
			return nil, fmt.Errorf("cannot give the chroot a resolver: %w", err)
		}
	}

	return func() {
		_ = os.Remove(file)
		if readErr == nil {
			_ = os.WriteFile(file, before, 0o644)
		}
	}, nil
}
