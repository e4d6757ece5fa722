// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
)

// image is what a machine boots.
type image struct{ kernel, kernelFile, initrd string }

// slowLayers are the disk that `make lab-slow` made: Debian with its kernel, and the driver that gpuadm has put there.
func slowLayers(t *testing.T) []string {
	t.Helper()
	below, err := lab.Rootfs("bookworm")
	lab.Have(t, err)
	found, err := filepath.Glob(filepath.Join(filepath.Dir(below[0]), "slow-*-"+filepath.Base(below[0])))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		missing(t, "no host in the cache on which gpuadm has installed a driver for Debian's kernel: make lab-slow makes one")
	}
	return append(found[len(found)-1:], below...)
}

// missing skips a test for want of something, and fails it in CI.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// makeImage makes an initial file system out of that disk: kmod and gpuadm with their libraries, the modules, modprobe's
// settings, and the first process.
func makeImage(t *testing.T) (m image) {
	t.Helper()
	layers := slowLayers(t)
	dir := t.TempDir()
	upper, err := os.MkdirTemp(filepath.Dir(layers[0]), ".vm-") // where an overlay can be: below /tmp may be one already
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(upper) }()
	err = lab.InChroot(layers, upper, func(c lab.Chroot) error {
		if err := furnish(t, c.Root); err != nil {
			return err
		}
		kernels, err := os.ReadDir(filepath.Join(c.Root, "usr/lib/modules"))
		if err != nil || len(kernels) != 1 {
			return fmt.Errorf("want one kernel: %v, %w", kernels, err)
		}
		m = image{kernels[0].Name(), filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd")}
		kernel, err := os.ReadFile(filepath.Join(c.Root, "boot/vmlinuz-"+m.kernel))
		if err == nil {
			err = os.WriteFile(m.kernelFile, kernel, 0o644)
		}
		if err != nil {
			return err
		}
		names, err := contents(t, c, m.kernel)
		if err != nil {
			return err
		}
		return pack(c.Root, m.initrd, names)
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// furnish puts beside the disk's files what the machine has besides: today's gpuadm, and what asks the questions.
func furnish(t *testing.T, root string) error {
	load := filepath.Join(t.TempDir(), "load")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", load, "./load")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64") // static: it needs nothing in the machine
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build ./load: %w: %s", err, out)
	}
	for from, to := range map[string]string{
		"../../bin/gpuadm": "usr/local/sbin/gpuadm", load: "usr/local/sbin/gpuadm-load", "testdata/init": "init",
	} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(root, to), data, 0o755)
		}
		if err != nil {
			return fmt.Errorf("cannot put %s in the machine: %w; make build makes gpuadm", to, err)
		}
	}
	return os.Mkdir(filepath.Join(root, "etc/empty"), 0o755)
}

// ldd(1) says "name => /path (address)", and of the loader "/path (address)".
var library = regexp.MustCompile(`(?m)(/\S+) \(0x[0-9a-f]+\)$`)

// contents lists what the machine needs of the disk.
func contents(t *testing.T, c lab.Chroot, kernel string) ([]string, error) {
	programs := []string{"/usr/sbin/modprobe", "/usr/bin/strace", "/usr/local/sbin/gpuadm"}
	names := append([]string{
		"/init", "/bin/busybox", "/bin/sh", "/usr/local/sbin/gpuadm-load", "/etc/os-release", "/etc/empty", "/etc/ld.so.cache",
		"/boot/vmlinuz-" + kernel, "/var/lib/dkms/mok.pub", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
		"/proc", "/sys", "/dev", "/run", "/tmp", "/var/lib",
	}, programs...)
	out, err := c.Run(t.Context(), nil, append([]string{"ldd"}, programs...)...)
	if err != nil {
		return nil, err
	}
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		names = append(names, m[1])
	}
	patterns := []string{"/etc/modprobe.d/*", "/usr/lib/modprobe.d/*", "/etc/modules-load.d/*", "/etc/gpuadm/*"}
	for _, pattern := range append(patterns, "/usr/lib/modules/"+kernel+"/modules.*") {
		found, err := filepath.Glob(filepath.Join(c.Root, pattern))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			names = append(names, strings.TrimPrefix(f, c.Root))
		}
	}
	modules, err := moduleFiles(t, c, kernel)
	return append(names, modules...), err
}

// moduleFiles are the modules that dkms has built, and nouveau, with all they need.
func moduleFiles(t *testing.T, c lab.Chroot, kernel string) (files []string, err error) {
	built, err := filepath.Glob(filepath.Join(c.Root, "usr/lib/modules", kernel, "updates/dkms/*.ko"))
	if err == nil && len(built) == 0 {
		err = errors.New("dkms has built no module")
	}
	if err != nil {
		return nil, err
	}
	for _, place := range append(built, "nouveau.ko") {
		// The files' own names: nvidia alone leads to a command in Debian's settings.
		out, err := c.Run(t.Context(), nil, "modprobe", "--set-version", kernel, "--ignore-install", "--show-depends", strings.TrimSuffix(filepath.Base(place), ".ko"))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(out)) {
			if words := strings.Fields(line); len(words) > 1 && words[0] == "insmod" {
				files = append(files, words[1])
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// pack writes the archive. A link of the distribution's that leads nowhere stays one.
func pack(root, to string, names []string) (err error) {
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	a := newArchive(io.Writer(file))
	for _, name := range names {
		if err := a.take(root, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		} else if err != nil {
			if _, lerr := os.Lstat(filepath.Join(root, name)); lerr != nil {
				return err
			}
		}
	}
	return a.close()
}
