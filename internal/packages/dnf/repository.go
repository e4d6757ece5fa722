// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

func dnfSource(r packages.Repository) string { return dnfRepos + "/gpuadm-" + r.ID + ".repo" }

func dnfKey(r packages.Repository) string { return dnfKeys + "RPM-GPG-KEY-gpuadm-" + r.ID + ".asc" }

func dnfID(r packages.Repository) string { return "gpuadm-" + r.ID }

// Repositories are one file each, which names the key. rpm itself knows no key for one repository alone, so that one
// is a thing of its own. See dnf.conf(5).
func (a dnf) Repositories(database *packages.Reading, repos []packages.Repository, via host.Via) ([]converge.Want, error) {
	repos = slices.DeleteFunc(slices.Clone(repos), func(r packages.Repository) bool { return r.URL == "" }) // dnf has no pins
	if len(repos) == 0 {
		return nil, nil
	}
	wants := things.Folders("/etc/pki/rpm-gpg", "keys that repositories name")
	wants = append(wants, things.Folders(dnfRepos, "dnf's repositories")...)
	seen := map[string]bool{}
	wants = slices.DeleteFunc(wants, func(w converge.Want) bool {
		was := seen[w.Ref().Name]
		seen[w.Ref().Name] = true
		return was // both have /etc
	})
	for _, r := range repos {
		key := dnfKey(r)
		wants = append(wants, things.Key(key, r.Key, r.Fingerprint, via, "signs "+r.About))
		if r.Signed != packages.SignedMetadata && !seen[r.Fingerprint] { // two repositories may have one key
			seen[r.Fingerprint] = true
			wants = append(wants, importedKey(database, r.Fingerprint, key, "rpm checks packages with it"))
		}
		wants = append(wants, packages.Source(dnfSource(r), dnfRepo(r, key, via), database, r.About))
	}
	return append(wants, packages.Lists(a, slices.Sorted(maps.Keys(a.Contents(repos, via))))), nil
}

func (dnf) Contents(repos []packages.Repository, via host.Via) map[string][]byte {
	files := map[string][]byte{}
	for _, r := range repos {
		if r.URL != "" {
			files[dnfSource(r)] = dnfRepo(r, dnfKey(r), via)
		}
	}
	return files
}

// Upgrades wants nothing: dnf-automatic obeys the locks of versionlock.
func (dnf) Upgrades([]string, bool) []converge.Want { return nil }

// dnfRepo refuses to go on without the repository: dnf by itself may skip one with a wrong signature.
func dnfRepo(r packages.Repository, key string, via host.Via) []byte {
	gpgcheck, metadata := 1, 1
	switch r.Signed {
	case packages.SignedMetadata:
		gpgcheck = 0
	case packages.SignedPackages:
		metadata = 0
	}
	var b strings.Builder
	b.WriteString(packages.Header)
	for _, p := range r.Pins { // dnf has no pins by version; a version that the spec asks for since today makes the lists old
		if p.Version != "" {
			fmt.Fprintf(&b, "# for version %s\n", p.Version)
		}
	}
	fmt.Fprintf(&b, "[%s]\nname=%s\nbaseurl=%s\nenabled=1\ngpgcheck=%d\nrepo_gpgcheck=%d\ngpgkey=file://%s\nskip_if_unavailable=0\n",
		dnfID(r), r.About, strings.TrimSuffix(r.URL, "/"), gpgcheck, metadata, key)
	if r.Whole { // without a list of streams dnf refuses packages that are labelled as parts of one: dnf.conf(5)
		b.WriteString("module_hotfixes=1\n")
	}
	proxy := via.HTTPS
	if strings.HasPrefix(r.URL, "http:") {
		proxy = via.HTTP
	}
	if proxy != "" {
		fmt.Fprintf(&b, "proxy=%s\n", proxy)
	}
	if via.CAFile != "" {
		fmt.Fprintf(&b, "sslcacert=%s\n", via.CAFile)
	}
	return []byte(b.String())
}
