// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"maps"
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

func aptPins(r packages.Repository) string { return "/etc/apt/preferences.d/00-gpuadm-" + r.ID }

// aptKeyring is binary, as every apt takes it; a key that is known by its file's digest stays armored.
func aptKeyring(r packages.Repository) string {
	end := ".gpg"
	if strings.HasPrefix(r.Fingerprint, "sha256:") {
		end = ".asc"
	}
	return "/etc/apt/keyrings/gpuadm-" + r.ID + end
}

// Repositories are deb822 files, so that Signed-By can say which key counts: a key in trusted.gpg.d would be trusted
// for every repository. See sources.list(5), apt_preferences(5).
func (a apt) Repositories(database *packages.Reading, repos []packages.Repository, via host.Via) ([]converge.Want, error) {
	if len(repos) == 0 {
		return nil, nil
	}
	if i := slices.IndexFunc(repos, func(r packages.Repository) bool { return r.Signed == packages.SignedPackages }); i >= 0 {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot trust repository %s by its packages' signatures: apt checks those of the metadata", repos[i].URL),
			Try:  []string{`leave out signature = "packages"; have the mirror sign its Release file`},
		}
	}
	wants := things.Folders("/etc/apt/keyrings", "keys that are trusted for one repository each")
	for _, r := range repos {
		if keyring := aptKeyring(r); r.URL != "" {
			wants = append(wants,
				things.Key(keyring, r.Key, r.Fingerprint, via, "signs "+r.About),
				packages.Source(aptSource(r), deb822(r, keyring), database, r.About))
		}
		if len(r.Pins) > 0 {
			wants = append(wants, things.Exact(aptPins(r), preferences(r), 0o644, "apt keeps to the version wanted"))
		}
	}
	if conf := aptConf(via); conf != nil {
		wants = append(wants, things.Exact(aptProxy, conf, 0o644, "how apt reaches the network"))
	}
	contents := a.Contents(repos, via)
	return append(wants, a.readable(repos, contents), packages.Lists(a, slices.Sorted(maps.Keys(contents)))), nil
}

func (apt) Contents(repos []packages.Repository, _ host.Via) map[string][]byte {
	files := map[string][]byte{}
	for _, r := range repos {
		if r.URL != "" {
			files[aptSource(r)] = deb822(r, aptKeyring(r))
		}
		if len(r.Pins) > 0 {
			files[aptPins(r)] = preferences(r)
		}
	}
	return files
}

func deb822(r packages.Repository, keyring string) []byte {
	return fmt.Appendf(nil, "%s# %s\nTypes: deb\nURIs: %s\nSuites: /\nSigned-By: %s\n", packages.Header, r.About, withSlash(r.URL), keyring)
}

// withSlash: a flat repository's suite is a path below its URL, which must end in a slash.
func withSlash(url string) string { return strings.TrimSuffix(url, "/") + "/" }

// preferences are the records of apt's pins.
func preferences(r packages.Repository) []byte {
	return fmt.Appendf([]byte(packages.Header), "%s", packages.Records(r.Pins))
}

// aptProxy has how apt reaches the network, if the spec says so.
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
	return []byte(strings.Replace(packages.Header, "#", "//", 1) + b.String())
}

// Upgrades wants automatic upgrades to leave these packages alone and, where needrestart is there, it to leave alone the
// daemons that node and pods depend on: it would restart containerd in the middle of an installation.
// Sources: unattended-upgrades' README, apt.conf(5); needrestart's README.batch.md and needrestart.conf.
func (apt) Upgrades(names []string, needrestart bool) []converge.Want {
	comment := strings.Replace(packages.Header, "#", "//", 1)
	b := []byte(comment + "Unattended-Upgrade::Package-Blacklist {\n")
	literally := strings.NewReplacer(".", `\\.`, "+", `\\+`)
	for _, n := range names {
		b = fmt.Appendf(b, "  \"^%s$\";\n", literally.Replace(n))
	}
	b = append(b, "};\n"...)
	wants := []converge.Want{things.Exact("/etc/apt/apt.conf.d/52gpuadm-hold", b, 0o644, "automatic upgrades leave the driver alone")}
	if needrestart {
		const conf = "$nrconf{override_rc}{qr(^(containerd|kubelet|nvidia-fabricmanager|nvidia-persistenced)\\.service$)} = 0;\n"
		wants = append(wants, things.Folders("/etc/needrestart/conf.d", "holds needrestart's settings")...)
		wants = append(wants, things.Exact("/etc/needrestart/conf.d/gpuadm.conf", []byte(packages.Header+conf), 0o644, "no daemon is restarted in the middle of an installation"))
	}
	return wants
}
