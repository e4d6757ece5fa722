// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

// A Repository is where packages come from beside the distribution's own.
type Repository struct {
	ID          string // cuda, nvidia-container-toolkit: what our files about it are named after
	About       string // NVIDIA's CUDA repository for debian12
	URL         string // http, https or file; a flat apt repository, or a dnf one; "" for the distribution's own, with Pins only
	Key         string // URL or absolute path of the public key
	Fingerprint string // of the key; or "sha256:" and the digest of its file: see things.Key
	Pins        []Pin  // what may come from it, and in which version
	Signed      Signed // what of a dnf repository the key signs
	Mixed       bool   // somebody made it, of packages that nobody else can tell: it may have kernel headers too
}

// Signed says what a repository's key signs. There is no word for nothing.
type Signed string

// NVIDIA signs both in its CUDA repositories (SIGNATURES.md in NVIDIA/cuda-repo-management), and only the metadata in
// the container toolkit's (its own .repo file says gpgcheck=0, repo_gpgcheck=1), which holds the packages' checksums.
const (
	SignedBoth     Signed = "" // packages and metadata; apt's always sign the metadata, and so all
	SignedMetadata Signed = "metadata"
	SignedPackages Signed = "packages" // for mirrors that make their metadata anew
)

// SignedAs reads what a spec says of it; auto is for what it leaves open.
func SignedAs(said string, auto Signed) Signed {
	switch said {
	case "both":
		return SignedBoth
	case "metadata":
		return SignedMetadata
	case "packages":
		return SignedPackages
	}
	return auto
}

// A Pin is a record of apt_preferences(5).
type Pin struct {
	Names    []string
	Version  string // that it keeps the packages at: 580.95.05, or a beginning of one that ends in ".*": 580.*; "" for none
	Pin      string // version 580.95.05-*, release o=Ubuntu
	Priority int
}

// KeepAt keeps packages at a version with any revision, above 1000 so that a downgrade is made too. It fails open where the
// version is gone, so it is a second line: what installs names every version, and holds it.
func KeepAt(version string, names ...string) Pin {
	return Pin{Names: names, Version: version, Pin: "version " + glob(version), Priority: 1001}
}

// Repositories wants the machine to know these repositories, to trust each one's key for that repository alone, and to
// have current lists of what they hold. manager is what Detect returned; database also holds the keys that rpm trusts.
func Repositories(database *Reading, manager string, repos []Repository, via host.Via) ([]converge.Want, error) {
	if manager == "dnf" { // which has no pins
		repos = slices.DeleteFunc(slices.Clone(repos), func(r Repository) bool { return r.URL == "" })
	}
	if len(repos) == 0 {
		return nil, nil
	}
	if i := slices.IndexFunc(repos, func(r Repository) bool { return manager == "apt" && r.Signed == SignedPackages }); i >= 0 {
		return nil, &converge.Trouble{
			What: fmt.Sprintf("cannot trust repository %s by its packages' signatures: apt checks those of the metadata", repos[i].URL),
			Try:  []string{`leave out signature = "packages"; have the mirror sign its Release file`},
		}
	}
	switch manager {
	case "apt":
		return aptRepositories(repos, via), nil
	case "dnf":
		return dnfRepositories(database, repos, via), nil
	}
	return nil, &converge.Trouble{
		What: "cannot install packages: neither dpkg nor rpm manages this machine",
		Try:  []string{`set owner = "other" in [driver] if somebody else installs the driver`},
	}
}

// Sources are our files that say where packages come from, and for apt in which version: a version that the spec asks for
// since today may have come since the lists were last read.
func Sources(manager string, repos []Repository) (files []string) {
	for _, r := range repos {
		if r.URL != "" && manager == "apt" {
			files = append(files, aptSource(r))
		}
		if len(r.Pins) > 0 && manager == "apt" {
			files = append(files, aptPins(r))
		}
		if r.URL != "" && manager == "dnf" {
			files = append(files, dnfSource(r))
		}
	}
	return files
}

func aptSource(r Repository) string { return "/etc/apt/sources.list.d/gpuadm-" + r.ID + ".sources" }

// Contents are what those files shall hold.
func Contents(manager string, repos []Repository, via host.Via) map[string][]byte {
	files := map[string][]byte{}
	for _, r := range repos {
		switch {
		case manager == "dnf" && r.URL != "":
			files[dnfSource(r)] = dnfRepo(r, dnfKey(r), via)
		case manager == "apt" && r.URL != "":
			files[aptSource(r)] = deb822(r, aptKeyring(r))
		}
		if manager == "apt" && len(r.Pins) > 0 {
			files[aptPins(r)] = preferences(r)
		}
	}
	return files
}

func aptPins(r Repository) string { return "/etc/apt/preferences.d/00-gpuadm-" + r.ID }

// aptKeyring is binary, as every apt takes it; a key that is known by its file's digest stays armored as it is.
func aptKeyring(r Repository) string {
	end := ".gpg"
	if strings.HasPrefix(r.Fingerprint, "sha256:") {
		end = ".asc"
	}
	return "/etc/apt/keyrings/gpuadm-" + r.ID + end
}

// DatabaseOf is what the database of a manager's packager is called.
func DatabaseOf(manager string) string {
	if manager == "dnf" {
		return "rpm"
	}
	return "dpkg"
}

// aptRepositories are deb822 files, so that Signed-By can say which key counts: a key in trusted.gpg.d would be trusted
// for every repository. See sources.list(5), apt_preferences(5).
func aptRepositories(repos []Repository, via host.Via) []converge.Want {
	wants := things.Folders("/etc/apt/keyrings", "keys that are trusted for one repository each")
	for _, r := range repos {
		if keyring := aptKeyring(r); r.URL != "" {
			wants = append(wants,
				things.Key(keyring, r.Key, r.Fingerprint, via, "signs "+r.About),
				things.Exact(aptSource(r), deb822(r, keyring), 0o644, r.About))
		}
		if len(r.Pins) > 0 {
			wants = append(wants, things.Exact(aptPins(r), preferences(r), 0o644, "apt keeps to the version wanted"))
		}
	}
	if conf := aptConf(via); conf != nil {
		wants = append(wants, things.Exact(aptProxy, conf, 0o644, "how apt reaches the network"))
	}
	return append(wants, Lists("apt", Sources("apt", repos), "apt knows what the repositories hold"))
}

const header = "# Written by gpuadm, anew at each apply.\n"

func deb822(r Repository, keyring string) []byte {
	return fmt.Appendf(nil, "%s# %s\nTypes: deb\nURIs: %s\nSuites: /\nSigned-By: %s\n", header, r.About, withSlash(r.URL), keyring)
}

// withSlash: a flat repository's suite is a path below its URL, which must end in a slash.
func withSlash(url string) string { return strings.TrimSuffix(url, "/") + "/" }

// preferences are the records of apt's pins.
func preferences(r Repository) []byte {
	return fmt.Appendf([]byte(header), "%s", records(r.Pins))
}

func records(pins []Pin) (text string) {
	for _, p := range pins {
		text += fmt.Sprintf("\nPackage: %s\nPin: %s\nPin-Priority: %d\n", strings.Join(p.Names, " "), p.Pin, p.Priority)
	}
	return text
}

// glob matches a driver's version with any revision of the packager behind it: 580.95.05-1, 580.95.05-0ubuntu1.
func glob(version string) string {
	if strings.HasSuffix(version, "*") {
		return version
	}
	return version + "-*"
}

// aptProxy is where apt is told how to reach the network, if the spec says so.
const aptProxy = "/etc/apt/apt.conf.d/90gpuadm"

// aptConf says how to reach the network. See apt-transport-http(1), apt-transport-https(1).
func aptConf(via host.Via) []byte {
	var b strings.Builder
	for _, l := range []struct{ key, value string }{
		{"Acquire::http::Proxy", via.HTTP},
		{"Acquire::https::Proxy", via.HTTPS},
		{"Acquire::https::CAInfo", via.CAFile},
	} {
		if l.value != "" {
			fmt.Fprintf(&b, "%s %q;\n", l.key, l.value)
		}
	}
	for _, name := range via.No {
		if !strings.ContainsAny(name, "/*") && (via.HTTP != "" || via.HTTPS != "") {
			fmt.Fprintf(&b, "Acquire::http::Proxy::%s \"DIRECT\";\nAcquire::https::Proxy::%[1]s \"DIRECT\";\n", name)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	return []byte(strings.Replace(header, "#", "//", 1) + b.String())
}

// Upgrades wants automatic upgrades to leave these packages alone and, where needrestart is there, it to leave alone the
// daemons that node and pods depend on: it would restart containerd in the middle of an installation.
// Sources: unattended-upgrades' README, apt.conf(5); needrestart's README.batch.md and needrestart.conf.
func Upgrades(manager string, names []string, needrestart bool) []converge.Want {
	if manager != "apt" {
		return nil // dnf-automatic obeys the locks of versionlock
	}
	comment := strings.Replace(header, "#", "//", 1)
	b := []byte(comment + "Unattended-Upgrade::Package-Blacklist {\n")
	for _, n := range names {
		b = fmt.Appendf(b, "  \"^%s$\";\n", strings.NewReplacer(".", `\\.`, "+", `\\+`).Replace(n))
	}
	b = append(b, "};\n"...)
	wants := []converge.Want{things.Exact("/etc/apt/apt.conf.d/52gpuadm-hold", b, 0o644, "automatic upgrades leave the driver alone")}
	if needrestart {
		const conf = "$nrconf{override_rc}{qr(^(containerd|kubelet|nvidia-fabricmanager|nvidia-persistenced)\\.service$)} = 0;\n"
		wants = append(wants, things.Folders("/etc/needrestart/conf.d", "holds needrestart's settings")...)
		wants = append(wants, things.Exact("/etc/needrestart/conf.d/gpuadm.conf", []byte(header+conf), 0o644, "no daemon is restarted in the middle of an installation"))
	}
	return wants
}
