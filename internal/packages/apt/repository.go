// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"maps"
	"path"
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

// Enabled wants our files.
func (apt) Enabled(_ *packages.Reading, lacks []packages.Lack) (wants []converge.Want) {
	for _, l := range lacks {
		wants = append(wants, l.Enabling()...)
	}
	return wants
}

// archiveKeys are the keys that sign the archives of Debian and Ubuntu: their packages debian-archive-keyring and
// ubuntu-keyring. What has another key is another's archive, which may have no such components.
func archiveKeys() []string { return []string{"debian-archive-", "ubuntu-archive-"} }

// lackingComponents looks which components no entry of apt's names. Ours then says of the distribution's entries what they
// say, with the components that they lack.
func lackingComponents(sys packages.System, components []string) (packages.Lack, bool) {
	files := append([]string{"/etc/apt/sources.list"}, packages.FilesIn(sys, "/etc/apt/sources.list.d", ".list", ".sources")...)
	var named []string
	var all, archive []source
	for _, file := range files {
		all = append(all, parseSources(file, sys.Files[file], func() string { return sys.Arch })...)
	}
	for _, s := range all {
		if s.ofDistribution() {
			archive = append(archive, s)
		}
	}
	for _, s := range all { // another vendor's archive may have a component of the same name
		if len(archive) == 0 || slices.ContainsFunc(archive, func(a source) bool { return a.uri == s.uri }) {
			named = append(named, s.components...)
		}
	}
	missing := slices.DeleteFunc(slices.Clone(components), func(c string) bool { return slices.Contains(named, c) })
	if len(missing) == 0 {
		return packages.Lack{}, false
	}
	l := packages.Lack{Name: "the component " + missing[0], Try: fmt.Sprintf("add %s behind main in apt's sources, then apt-get update", strings.Join(missing, " "))}
	if len(missing) > 1 {
		l.Name = "the components " + strings.Join(missing, ", ")
	}
	if len(archive) == 0 {
		return l, true
	}
	l.Try = strings.Replace(l.Try, "apt's sources", archive[0].file, 1)
	l.File, l.Data = "/etc/apt/sources.list.d/"+packages.OurFiles+"components.sources", []byte(packages.Header)
	for _, s := range archive {
		l.Data = fmt.Appendf(l.Data, "\n# %s\nTypes: deb\nURIs: %s\nSuites: %s\nComponents: %s\n", s.file, s.uri, s.suite, strings.Join(missing, " "))
		for _, name := range slices.Sorted(maps.Keys(s.options)) {
			l.Data = fmt.Appendf(l.Data, "%s: %s\n", name, s.options[name])
		}
	}
	return l, true
}

// ofDistribution says whether an entry is of the archive that the system itself comes from: it has main, and is signed by the
// archive's key, or by any that apt trusts.
func (s source) ofDistribution() bool {
	if !slices.Contains(s.components, "main") || len(s.signedBy) == 0 && s.options["signed-by"] != "" {
		return false
	}
	return len(s.signedBy) == 0 || slices.ContainsFunc(s.signedBy, func(key string) bool {
		return slices.ContainsFunc(archiveKeys(), func(begin string) bool { return strings.HasPrefix(path.Base(key), begin) })
	})
}

// Lacking returns the components among the needs that no file about sources of a system has, as one Lack.
func Lacking(s packages.System, needs []string) []packages.Lack {
	if l, is := lackingComponents(s, needs); is {
		return []packages.Lack{l}
	}
	return nil
}
