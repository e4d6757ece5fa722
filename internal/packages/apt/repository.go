// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

func aptSource(r packages.Repository) string {
	return "/etc/apt/sources.list.d/gpuadm-" + r.ID + ".sources"
}

// Where apt reads pins, and how the names of gpuadm's begin.
const (
	pinFolder = "/etc/apt/preferences.d/"
	ourPins   = "00-gpuadm-"
)

func aptPins(r packages.Repository) string { return pinFolder + ourPins + r.ID }

// aptKeys is the folder with gpuadm's keys: sources.list(5) names each in Signed-By.
const aptKeys = "/etc/apt/keyrings/"

// aptKeyring names a binary file, which every apt reads; a key that the spec names by its file's
// digest stays armored.
func aptKeyring(r packages.Repository) string {
	end := ".gpg"
	if strings.HasPrefix(r.Fingerprint, "sha256:") {
		end = ".asc"
	}
	return aptKeys + "gpuadm-" + r.ID + end
}

// Repositories wants a deb822 file for each repository, so that Signed-By can name its key: apt
// would trust a key in trusted.gpg.d for every repository. See sources.list(5), apt_preferences(5).
func (a apt) Repositories(
	database *packages.Reading,
	repos []packages.Repository,
	via host.Via,
) ([]converge.Want, error) {
	if len(repos) == 0 {
		return nil, nil
	}

	contents := a.Contents(repos, via)
	conf := aptConf(via)

	wants := things.Folders("/etc/apt/keyrings", "keys that are trusted for one repository each")
	wants = append(wants, settingFolders(contents, conf)...)

	for _, r := range repos {
		if r.Signed == packages.SignedPackages {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot trust repository %s by its packages' signatures: apt checks those of the metadata", r.URL),
				Try:  []string{`leave out signature = "packages"; have the mirror sign its Release file`},
			}
		}

		if r.URL != "" {
			source := aptSource(r)
			wants = append(wants,
				things.Key(aptKeyring(r), r.Key, r.Fingerprint, via, "signs "+r.About),
				packages.Source(source, contents[source], database, r.About))
		}

		if len(r.Pins) > 0 {
			pins := aptPins(r)
			wants = append(wants, things.Exact(pins, contents[pins], 0o644, "apt keeps to the version wanted"))
		}
	}

	if conf != nil {
		wants = append(wants, things.Exact(aptProxy, conf, 0o644, "how apt reaches the network"))
	}

	files := slices.Sorted(maps.Keys(contents))
	return append(wants, a.readable(repos, contents), packages.Lists(a, files)), nil
}

// settingFolders wants the folders of apt's settings that the files are in, below /etc/apt, which
// the folder of the keys has wanted. An image that was stripped may lack them.
func settingFolders(contents map[string][]byte, conf []byte) (wants []converge.Want) {
	var folders []string
	for name := range contents {
		folders = append(folders, path.Dir(name))
	}
	if conf != nil {
		folders = append(folders, path.Dir(aptProxy))
	}

	slices.Sort(folders)
	for _, name := range slices.Compact(folders) {
		own := things.Folders(name, "holds apt's settings")
		wants = append(wants, own[len(own)-1])
	}

	return wants
}

func (apt) Contents(repos []packages.Repository, _ host.Via) map[string][]byte {
	files := map[string][]byte{}
	for _, r := range repos {
		if r.URL != "" {
			files[aptSource(r)] = sourceFile(r, aptKeyring(r))
		}
		if len(r.Pins) > 0 {
			files[aptPins(r)] = preferences(r)
		}
	}

	return files
}

// sourceFile writes a repository in the form of deb822.
func sourceFile(r packages.Repository, keyring string) []byte {
	const form = "%s# %s\nTypes: deb\nURIs: %s\nSuites: /\nSigned-By: %s\n"
	return fmt.Appendf(nil, form, packages.Header, r.About, withSlash(r.URL), keyring)
}

// withSlash: a flat repository's suite is a path below its URL, which must end in a slash.
func withSlash(url string) string { return strings.TrimSuffix(url, "/") + "/" }

// preferences are the records of apt's pins.
func preferences(r packages.Repository) []byte {
	return []byte(packages.Header + packages.PinRecords(r.Pins))
}

// aptProxy has apt's proxy and CA settings, if the spec has any.
const aptProxy = "/etc/apt/apt.conf.d/90gpuadm"

// headerOfConf is the first line of gpuadm's files with apt's settings: apt.conf(5).
func headerOfConf() string { return strings.Replace(packages.Header, "#", "//", 1) }

// aptConf writes apt's proxy and CA settings. See apt-transport-http(1), apt-transport-https(1).
func aptConf(via host.Via) []byte {
	var b strings.Builder
	for _, setting := range []struct{ key, value string }{
		{"Acquire::http::Proxy", via.HTTP},
		{"Acquire::https::Proxy", via.HTTPS},
		{"Acquire::https::CAInfo", via.CAFile},
	} {
		if setting.value != "" {
			fmt.Fprintf(&b, "%s %q;\n", setting.key, setting.value)
		}
	}

	if via.HTTP != "" || via.HTTPS != "" {
		for _, name := range via.No {
			if !strings.ContainsAny(name, "/*") {
				fmt.Fprintf(&b, "Acquire::http::Proxy::%s \"DIRECT\";\n", name)
				fmt.Fprintf(&b, "Acquire::https::Proxy::%s \"DIRECT\";\n", name)
			}
		}
	}

	if b.Len() == 0 {
		return nil
	}
	return []byte(headerOfConf() + b.String())
}

// Upgrades wants automatic upgrades to leave these packages alone. Where needrestart is installed,
// Upgrades also wants it to leave alone the daemons that node and pods depend on: it would restart
// containerd in the middle of an installation.
// Sources: 50unattended-upgrades, apt.conf(5), ParseCWord in apt's apt-pkg/contrib/strutl.cc;
// needrestart's README.batch.md and needrestart.conf.
func (apt) Upgrades(names []string, needrestart bool) []converge.Want {
	conf := []byte(headerOfConf() + "Unattended-Upgrade::Package-Blacklist {\n")
	for _, name := range names {
		expression := "^" + regexp.QuoteMeta(name) + "$" // apt passes a backslash on as it is
		conf = fmt.Appendf(conf, "  \"%s\";\n", expression)
	}
	conf = append(conf, "};\n"...)

	const hold = "/etc/apt/apt.conf.d/52gpuadm-hold"
	wants := things.Folders(path.Dir(hold), "holds apt's settings")
	wants = append(wants, things.Exact(hold, conf, 0o644, "automatic upgrades leave the driver alone"))
	if !needrestart {
		return wants
	}

	const (
		folder    = "/etc/needrestart/conf.d"
		daemons   = "containerd|kubelet|nvidia-fabricmanager|nvidia-persistenced"
		noRestart = "$nrconf{override_rc}{qr(^(" + daemons + ")\\.service$)} = 0;\n"
		why       = "no daemon is restarted in the middle of an installation"
	)
	wants = append(wants, things.Folders(folder, "holds needrestart's settings")[1:]...) // both have /etc
	return append(wants, things.Exact(folder+"/gpuadm.conf", []byte(packages.Header+noRestart), 0o644, why))
}
