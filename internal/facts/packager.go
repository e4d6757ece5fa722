// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"slices"

	"github.com/gpuadm/gpuadm/internal/host"
)

// A Packager is a program that installs a system's packages. No other list in gpuadm ties
// distributions to packagers.
type Packager struct {
	Name     string   // apt, dnf; "" = none that gpuadm knows
	Database string   // dpkg, rpm
	IDs      []string // of os-release, as ID or in ID_LIKE
	Foreign  bool     // gpuadm does not install with it
}

// systems has the packagers; of those with the same database gpuadm tries the first one first.
var systems = [...]Packager{
	{Name: "apt", Database: "dpkg", IDs: []string{"debian", "ubuntu"}},
	{Name: "zypper", Database: "rpm", IDs: []string{"sles", "suse", "opensuse"}, Foreign: true},
	{Name: "dnf", Database: "rpm", IDs: []string{"rhel", "fedora", "centos", "amzn", "azurelinux"}},
}

// The databases of dpkg and rpm. Fedora and RHEL 10 have rpm's below /usr; /var/lib/rpm is a link
// to it, or the folder itself.
const DpkgStatus = "/var/lib/dpkg/status"

func RpmFiles() (files []string) {
	for _, dir := range []string{"/var/lib/rpm/", "/usr/lib/sysimage/rpm/"} {
		files = append(files, dir+"rpmdb.sqlite", dir+"Packages.db", dir+"Packages")
	}
	return files
}

// Packager returns the packager of a system: by its own name, then by the systems that it is like.
func (o OS) Packager() Packager {
	for _, id := range append([]string{o.ID}, o.Like...) {
		for _, p := range systems {
			if slices.Contains(p.IDs, id) {
				return p
			}
		}
	}
	return Packager{}
}

// PackagerOf returns the packager of a machine: its system's own one if its database has packages,
// else the packager of the database that has packages. Its name is "" if there is none.
func PackagerOf(v host.View) Packager {
	database := DatabaseOf(v)
	own := (&gathering{v: v}).os().Packager()
	for _, p := range append([]Packager{own}, systems[:]...) {
		if database == "" || p.Database != database {
			continue
		}
		if p.Name == own.Name || !p.Foreign {
			return p
		}
	}

	return Packager{}
}

// DatabaseOf returns the database that has packages, dpkg or rpm; "" if none has. Either tool may
// be installed on the other's system; then its database is empty.
func DatabaseOf(v host.View) string {
	filled := func(name string) bool {
		info, err := v.Stat(name)
		return err == nil && info.Size > 0
	}

	switch {
	case filled(DpkgStatus):
		return "dpkg"
	case slices.ContainsFunc(RpmFiles(), filled):
		return "rpm"
	}

	return ""
}
