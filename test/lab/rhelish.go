// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

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

// shims are packages without a file, which provide what Debian's packages have installed: rpm's
// database knows nothing of that, and each scriptlet depends on /bin/sh.
func shims() map[string]string {
	return map[string]string{
		"redhat-release": shim("redhat-release", "9.4",
			"system-release = 9.4", "system-release(releasever) = 9", "base-module(platform:el9)"),
		"debian-base-shim": shim("debian-base-shim", "1.0",
			"/bin/sh", "/usr/bin/sh", "/usr/bin/bash", "bash",
			"/usr/sbin/ldconfig", "/sbin/ldconfig",
			"systemd", "kmod", "dkms"),
		// gpuadm asks for this one first, to see whether the database answers.
		"rpm": shim("rpm", "4.16.1.3", "rpm = 4.16.1.3") + "%ghost /usr/bin/rpm\n",
	}
}

// shim is the spec file of such a package.
func shim(name, version string, provides ...string) string {
	return "Name: " + name + "\nVersion: " + version + `
Release: 1.el9
Summary: what the lab's host has
License: Apache-2.0
BuildArch: noarch
AutoReqProv: no
Provides: ` + strings.Join(provides, "\nProvides: ") + `
%description
Nothing but a name.
%files
`
}

// makeRHELish has a Debian with rpm say that it is a RHEL.
func makeRHELish(ctx context.Context, c Chroot) error {
	if err := c.write("usr/lib/os-release", osRelease); err != nil {
		return err
	}
	if err := c.write("etc/dnf/dnf.conf", dnfConf); err != nil {
		return err
	}

	install := []string{"rpm", "--install"}
	for name, spec := range shims() {
		if err := c.write("tmp/shims/"+name+".spec", spec); err != nil {
			return err
		}
		_, err := c.Run(ctx, nil, "rpmbuild", "--quiet", "-bb",
			"--define=_topdir /tmp/shims",
			"--define=_rpmdir /tmp/shims",
			"--define=_rpmfilename %%{NAME}.rpm",
			"/tmp/shims/"+name+".spec")
		if err != nil {
			return err
		}
		install = append(install, "/tmp/shims/"+name+".rpm")
	}

	_, err := c.Run(ctx, nil, install...)
	return errors.Join(err, os.RemoveAll(filepath.Join(c.Root, "tmp/shims")))
}

// write writes a file into the chroot, with its folders.
func (c Chroot) write(name, text string) error {
	place := filepath.Join(c.Root, name)
	err := os.MkdirAll(filepath.Dir(place), 0o755)
	if err == nil {
		err = os.WriteFile(place, []byte(text), 0o644)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s into the chroot: %w", name, err)
	}
	return nil
}

// dnfConf is as RHEL 9 ships it: its dnf.conf(5) and the file in its dnf-data package.
const dnfConf = `[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
`

// debianTools are what a RHEL does not have: what programs ask to find out what a host is, and two
// plugins of Debian's dnf: local makes --installroot fail, and system_upgrade wants more packages.
func debianTools() []string {
	const plugins = "/usr/lib/python3/dist-packages/dnf-plugins/"
	return []string{
		"/etc/apt", "/var/lib/apt",
		"/etc/dpkg", "/var/lib/dpkg",
		"/etc/debian_version",
		"/usr/bin/apt", "/usr/bin/apt-cache", "/usr/bin/apt-get", "/usr/bin/apt-mark", "/usr/bin/apt-config",
		"/usr/bin/dpkg", "/usr/bin/dpkg-deb", "/usr/bin/dpkg-query", "/usr/bin/dpkg-divert",
		plugins + "local.py", plugins + "system_upgrade.py",
	}
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
