// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// A layer is what packages, and what is done with them, make of a distribution's root filesystem.
type layer struct {
	name     string
	recipe   string // changes with what more does
	packages []string
	more     func(context.Context, Chroot) error // nil: nothing
}

// rhelLayer makes of a Debian 13 a host that dnf and rpm manage, and that can build packages for
// them.
func rhelLayer() layer {
	return layer{RHELish, "3", []string{"dnf", "rpm", "createrepo-c", "dnf-plugins-core", "gpg-agent"}, makeRHELish}
}

// headersLayer has what builds modules for a kernel that does not run: of Options.Headers.
func headersLayer() layer {
	return layer{"headers", "1", []string{"linux-headers-" + runtime.GOARCH, "dkms", "gcc", "make", "libc6-dev"}, nil}
}

// kernelLayer has what makes a machine of its own of a host: a kernel, what makes its initial file
// system, and cloud-init. Of Options.Kernel. The kernel is that of images/chroot/bake.sh, whose few
// modules make the initial file system a matter of seconds.
func kernelLayer() layer {
	return layer{"kernel", "1", []string{
		"linux-image-cloud-" + runtime.GOARCH, "linux-headers-cloud-" + runtime.GOARCH, "initramfs-tools", "dkms", "gcc", "make", "libc6-dev", "cloud-init",
	}, nil}
}

// SetupKernel makes what Options.Kernel needs, where it is missing: no other host does.
func SetupKernel(ctx context.Context, dist string, log func(string)) error {
	return kernelLayer().build(ctx, dist, log)
}

// Rootfs finds the layers that a distribution's root filesystem is made of, the topmost first.
func Rootfs(dist string) ([]string, error) {
	if dist == RHELish {
		return rhelLayer().over("trixie")
	}
	place, err := rootfsDir(dist)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(place); err != nil {
		return nil, errMissing{"cannot find the root filesystem of " + dist}
	}
	return []string{place}, nil
}

// over finds the layer and what it lies on.
func (l layer) over(dist string) ([]string, error) {
	place, err := l.dir(dist)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(place); err != nil {
		return nil, errMissing{"cannot find the layer " + filepath.Base(place)}
	}
	below, err := Rootfs(dist)
	return append([]string{place}, below...), err
}

// dir is where the layer lies.
func (l layer) dir(dist string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	below := dist
	if dist == RHELish {
		below, err = rhelLayer().dir("trixie")
	} else {
		below, err = rootfsDir(dist)
	}
	if err != nil {
		return "", err
	}
	key := sha256.Sum256([]byte(l.recipe + " " + filepath.Base(below) + " " + strings.Join(l.packages, " ")))
	return filepath.Join(cache, fmt.Sprintf("%s-%s-%x", dist, l.name, key[:6])), nil
}

// build makes the layer where it is missing.
func (l layer) build(ctx context.Context, dist string, log func(string)) error {
	place, err := l.dir(dist)
	if err != nil {
		return err
	}
	return Cached(place, func(scratch string) error {
		below, err := Rootfs(dist)
		if err != nil {
			return err
		}
		log("apt-get install " + strings.Join(l.packages, " "))
		return InChroot(below, scratch, func(c Chroot) error {
			err := c.install(ctx, l.packages)
			if err == nil && l.more != nil {
				err = l.more(ctx, c)
			}
			return err
		})
	})
}

// osRelease is what RHEL 9.4 says of itself, in short.
const osRelease = `NAME="Red Hat Enterprise Linux"
VERSION="9.4 (Plow)"
ID="rhel"
ID_LIKE="fedora"
VERSION_ID="9.4"
PLATFORM_ID="platform:el9"
PRETTY_NAME="Red Hat Enterprise Linux 9.4 (Plow)"
CPE_NAME="cpe:/o:redhat:enterprise_linux:9::baseos"
`

// shims are packages without a file, which say that what Debian's packages put there is there:
// rpm's database knows nothing of them, and each scriptlet depends on /bin/sh.
func shims() map[string]string {
	spec := func(name, version string, provides ...string) string {
		return "Name: " + name + "\nVersion: " + version + "\nRelease: 1.el9\nSummary: what the lab's host has\nLicense: Apache-2.0\n" +
			"BuildArch: noarch\nAutoReqProv: no\nProvides: " + strings.Join(provides, "\nProvides: ") +
			"\n%description\nNothing but a name.\n%files\n"
	}
	return map[string]string{
		"redhat-release": spec("redhat-release", "9.4", "system-release = 9.4", "system-release(releasever) = 9", "base-module(platform:el9)"),
		"debian-base-shim": spec("debian-base-shim", "1.0", "/bin/sh", "/usr/bin/sh", "/usr/bin/bash", "bash", "systemd", "kmod",
			"/usr/sbin/ldconfig", "/sbin/ldconfig", "dkms"),
		"rpm": spec("rpm", "4.16.1.3", "rpm = 4.16.1.3") + "%ghost /usr/bin/rpm\n", // of which gpuadm asks first whether the database answers
	}
}

// makeRHELish has a Debian with rpm say that it is a RHEL.
func makeRHELish(ctx context.Context, c Chroot) error {
	files := map[string]string{
		"usr/lib/os-release": osRelease,
		// As RHEL 9 ships it: its dnf.conf(5) and the file in its dnf-data package.
		"etc/dnf/dnf.conf": "[main]\ngpgcheck=1\ninstallonly_limit=3\nclean_requirements_on_remove=True\nbest=True\nskip_if_unavailable=False\n",
	}
	for name, text := range shims() {
		files["tmp/shims/"+name+".spec"] = text
	}
	for name, text := range files {
		place := filepath.Join(c.Root, name)
		err := os.MkdirAll(filepath.Dir(place), 0o755)
		if err == nil {
			err = os.WriteFile(place, []byte(text), 0o644)
		}
		if err != nil {
			return fmt.Errorf("cannot make a RHEL of it: %w", err)
		}
	}
	install := []string{"rpm", "--install"}
	for name := range shims() {
		if _, err := c.Run(ctx, nil, "rpmbuild", "--quiet", "-bb", "--define=_topdir /tmp/shims", "--define=_rpmdir /tmp/shims",
			"--define=_rpmfilename %%{NAME}.rpm", "/tmp/shims/"+name+".spec"); err != nil {
			return err
		}
		install = append(install, "/tmp/shims/"+name+".rpm")
	}
	_, err := c.Run(ctx, nil, install...)
	return errors.Join(err, os.RemoveAll(filepath.Join(c.Root, "tmp/shims")))
}

// debianTools are what a RHEL does not have: what programs ask to find out what a host is, and
// plugins of Debian's dnf, of which local makes --installroot fail, and system_upgrade wants more
// packages.
func debianTools() []string {
	list := []string{"/etc/apt", "/etc/debian_version", "/etc/dpkg", "/var/lib/dpkg", "/var/lib/apt"}
	for _, name := range []string{"local", "system_upgrade"} {
		list = append(list, "/usr/lib/python3/dist-packages/dnf-plugins/"+name+".py")
	}
	for _, name := range []string{"apt", "apt-cache", "apt-get", "apt-mark", "apt-config", "dpkg", "dpkg-deb", "dpkg-query", "dpkg-divert"} {
		list = append(list, "/usr/bin/"+name)
	}
	return list
}

// hide hides what lies in the layers below the host's own, by overlayfs's whiteouts: character
// devices 0:0.
// Source: Documentation/filesystems/overlayfs.rst in the kernel's tree.
func (m *Machine) hide(names ...string) error {
	for _, name := range names {
		place := m.path("upper") + name
		err := os.MkdirAll(filepath.Dir(place), 0o755)
		if err == nil {
			err = syscall.Mknod(place, syscall.S_IFCHR, 0)
		}
		if err != nil {
			return fmt.Errorf("cannot hide %s from the host: %w", name, err)
		}
	}
	return nil
}
