// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers/modules"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// image is what a machine boots.
type image struct {
	kernel, kernelFile, initrd string
	parameters                 string // that gpuadm has written down for the module nvidia
}

// slowLayers are the disk that `make lab-slow` made: Debian with its kernel, and the driver that
// gpuadm has put there.
func slowLayers(t *testing.T) []string {
	t.Helper()
	below, err := lab.Rootfs("bookworm")
	lab.Have(t, err)
	found := must.Get(filepath.Glob(filepath.Join(filepath.Dir(below[0]), "slow-*-"+filepath.Base(below[0]))))(t)
	if len(found) == 0 {
		missing(t, "no host in the cache on which gpuadm has installed a driver for Debian's kernel: make lab-slow makes one")
	}
	return append(found[len(found)-1:], below...)
}

// missing skips a test for want of something, and fails it in CI.
func missing(t *testing.T, what string) {
	t.Helper()
	must.That(t, os.Getenv("CI") != "true", "%v", what)
	t.Skip(what)
}

// makeImage makes an initial file system out of that disk: kmod and gpuadm with their libraries,
// the modules, modprobe's settings, and the first process.
func makeImage(t *testing.T) (m image) {
	t.Helper()
	layers := slowLayers(t)
	upper, err := os.MkdirTemp(filepath.Dir(layers[0]), ".vm-") // there an overlay can be; /tmp may be one already
	must.OK(t, err)
	defer func() { _ = os.RemoveAll(upper) }()
	err = lab.InChroot(layers, upper, func(c lab.Chroot) (err error) {
		m, err = disk{c, t}.image()
		return err
	})
	must.OK(t, err)
	return m
}

// disk is the disk that the image is made out of.
type disk struct {
	lab.Chroot
	t *testing.T
}

func (d disk) path(name string) string { return filepath.Join(d.Root, name) }

func (d disk) run(argv ...string) (string, error) {
	out, err := d.Run(d.t.Context(), nil, argv...)
	return string(out), err
}

func (d disk) image() (m image, err error) {
	kernels, err := os.ReadDir(d.path("usr/lib/modules"))
	if err != nil || len(kernels) != 1 {
		return m, fmt.Errorf("want one kernel: %v, %v", kernels, err)
	}
	m.kernel = kernels[0].Name()
	if m.parameters, err = parameters(d.Root); err != nil {
		return m, err
	}
	if err := d.furnish(); err != nil {
		return m, err
	}
	names, err := d.contents(m.kernel)
	if err != nil {
		return m, err
	}
	// First what makes /lib of /usr/lib, that no folder is made in its place.
	dir := d.t.TempDir()
	m.kernelFile, m.initrd = filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd")
	for _, argv := range [][]string{
		{"mkdir", "--parents", "/image/usr/bin", "/image/usr/sbin", "/image/usr/lib", "/image/usr/lib64", "/image/etc/empty"},
		{"cp", "--archive", "/bin", "/sbin", "/lib", "/lib64", "/image"},
		append([]string{"cp", "--archive", "--parents", "--target-directory=/image"}, names...),
		{"mkdir", "/image/proc", "/image/sys", "/image/dev", "/image/run", "/image/tmp"},
		// The form that the kernel unpacks:
		// Documentation/driver-api/early-userspace/buffer-format.rst in its tree.
		{"busybox", "sh", "-c", "cd /image && busybox find . | busybox cpio -o -H newc >/initrd"},
	} {
		if _, err := d.run(argv...); err != nil {
			return m, err
		}
	}

	return m, errors.Join(copyFile(d.path("boot/vmlinuz-"+m.kernel), m.kernelFile), copyFile(d.path("initrd"), m.initrd))
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

var options = regexp.MustCompile(`(?m)^options nvidia (\S+)$`)

func parameters(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, modules.ModprobeFile))
	if err != nil {
		return "", err
	}
	var all []string
	for _, m := range options.FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	if len(all) == 0 {
		return "", fmt.Errorf("%s has no parameter, so the kernel could not be seen to get it", modules.ModprobeFile)
	}
	return strings.Join(all, " "), nil
}

// furnish puts beside the disk's files what the machine has besides: today's gpuadm, and what asks
// the questions.
func (d disk) furnish() error {
	load := filepath.Join(d.t.TempDir(), "load")
	build := exec.CommandContext(d.t.Context(), "go", "build", "-o", load, "./load")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64") // static: it needs nothing in the machine
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build ./load: %w: %s", err, out)
	}
	err := errors.Join(copyFile(load, d.path("usr/local/sbin/gpuadm-load")), copyFile("testdata/init", d.path("init")),
		copyFile("../../bin/gpuadm", d.path("usr/local/sbin/gpuadm")))
	if err != nil {
		return fmt.Errorf("cannot furnish the machine: %w; make build makes gpuadm", err)
	}
	return nil
}

// ldd(1) says "name => /path (address)", and of the loader "/path (address)"; modprobe(8) "insmod
// /path parameters".
var (
	library = regexp.MustCompile(`(?m)(/\S+) \(0x[0-9a-f]+\)$`)
	module  = regexp.MustCompile(`(?m)^insmod (/\S+)`)
)

// contents lists what the machine needs of the disk: each file, and the links to it.
func (d disk) contents(kernel string) ([]string, error) {
	names := []string{"/init", "/usr/local/sbin/gpuadm-load", "/etc/alternatives", "/etc/nvidia", "/boot/vmlinuz-" + kernel}
	programs := []string{"/usr/bin/sh", "/usr/bin/kmod", "/usr/bin/strace", "/usr/local/sbin/gpuadm", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"}
	ldd, err := d.run(append([]string{"ldd"}, programs...)...)
	if err != nil {
		return nil, err
	}
	for _, m := range library.FindAllStringSubmatch(ldd, -1) {
		programs = append(programs, m[1])
	}
	real, err := d.run(append([]string{"readlink", "--canonicalize-existing"}, programs...)...)
	if err != nil {
		return nil, err
	}
	names = slices.Concat(names, programs, strings.Fields(real))
	for _, pattern := range []string{
		"/usr/bin/busybox", "/usr/sbin/modprobe", "/etc/os-release", "/usr/lib/os-release", "/etc/ld.so.cache", "/var/lib/dkms/mok.pub",
		"/etc/modprobe.d", "/usr/lib/modprobe.d", "/etc/modules-load.d", "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so*",
		"/usr/lib/modules/" + kernel + "/modules.*", "/usr/lib/modules/" + kernel + "/updates/dkms/*.ko",
	} {
		found, err := filepath.Glob(d.path(pattern))
		if err != nil || len(found) == 0 {
			return nil, fmt.Errorf("cannot find %s on the disk: %v", pattern, err)
		}
		for _, name := range found {
			names = append(names, strings.TrimPrefix(name, d.Root))
		}
	}
	// What the modules need besides. The files' own names: nvidia alone leads to a command in
	// Debian's settings.
	for _, name := range append(slices.Clone(names), "nouveau.ko") {
		if !strings.HasSuffix(name, ".ko") {
			continue
		}
		needs, err := d.run("modprobe", "--set-version", kernel, "--ignore-install", "--show-depends", strings.TrimSuffix(filepath.Base(name), ".ko"))
		if err != nil {
			return nil, err
		}
		for _, m := range module.FindAllStringSubmatch(needs, -1) {
			names = append(names, m[1])
		}
	}

	slices.Sort(names)
	return slices.Compact(names), nil
}
