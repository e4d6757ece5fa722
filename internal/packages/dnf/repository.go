// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

func dnfSource(r packages.Repository) string {
	return dnfRepos + "/gpuadm-" + r.ID + ".repo"
}

func dnfKey(r packages.Repository) string {
	return dnfKeys + "RPM-GPG-KEY-gpuadm-" + r.ID + ".asc"
}

func dnfID(r packages.Repository) string { return "gpuadm-" + r.ID }

// Repositories wants one file for each repository, which names the key. rpm cannot trust a key for
// one repository alone, so rpm's key is a thing of its own. See dnf.conf(5).
func (a dnf) Repositories(
	database *packages.Reading,
	repos []packages.Repository,
	via host.Via,
) ([]converge.Want, error) {
	onlyPins := func(r packages.Repository) bool { return r.URL == "" } // dnf has no pins
	repos = slices.DeleteFunc(slices.Clone(repos), onlyPins)
	if len(repos) == 0 {
		return nil, nil
	}

	wants := things.Folders("/etc/pki/rpm-gpg", "keys that repositories name")
	wants = append(wants, things.Folders(dnfRepos, "dnf's repositories")[1:]...) // both have /etc

	seen := map[string]bool{} // two repositories may have one key
	for _, r := range repos {
		key := dnfKey(r)
		wants = append(wants, things.Key(key, r.Key, r.Fingerprint, via, "signs "+r.About))
		if r.Signed != packages.SignedMetadata && !seen[r.Fingerprint] {
			seen[r.Fingerprint] = true
			wants = append(wants, importedKey(database, r.Fingerprint, key, "rpm checks packages with it"))
		}
		wants = append(wants, packages.Source(dnfSource(r), repoFile(r, key, via), database, r.About))
	}

	files := slices.Sorted(maps.Keys(a.Contents(repos, via)))
	return append(wants, packages.Lists(a, files)), nil
}

func (dnf) Contents(repos []packages.Repository, via host.Via) map[string][]byte {
	files := map[string][]byte{}
	for _, r := range repos {
		if r.URL != "" {
			files[dnfSource(r)] = repoFile(r, dnfKey(r), via)
		}
	}

	return files
}

// Upgrades wants nothing: dnf-automatic obeys the locks of versionlock.
func (dnf) Upgrades([]string, bool) []converge.Want { return nil }

// repoFile has dnf stop without the repository: dnf's default is to skip a repository whose
// signature is wrong.
func repoFile(r packages.Repository, key string, via host.Via) []byte {
	checkPackages := 1
	checkMetadata := 1
	switch r.Signed {
	case packages.SignedMetadata:
		checkPackages = 0
	case packages.SignedPackages:
		checkMetadata = 0
	}

	var b strings.Builder
	b.WriteString(packages.Header)
	// dnf has no pins by version. The comment makes the lists stale when a version is new in the
	// spec.
	for _, p := range r.Pins {
		if p.Version != "" {
			fmt.Fprintf(&b, "# for version %s\n", p.Version)
		}
	}

	base := strings.TrimSuffix(r.URL, "/")
	fmt.Fprintf(&b, "[%s]\nname=%s\nbaseurl=%s\nenabled=1\n", dnfID(r), r.About, base)
	fmt.Fprintf(&b, "gpgcheck=%d\nrepo_gpgcheck=%d\ngpgkey=file://%s\n", checkPackages, checkMetadata, key)
	b.WriteString("skip_if_unavailable=0\n")
	if r.Whole {
		// Without a list of streams dnf refuses packages that are labelled as parts of one:
		// dnf.conf(5).
		b.WriteString("module_hotfixes=1\n")
	}

	if proxy := proxyOf(r.URL, via); proxy != "" {
		fmt.Fprintf(&b, "proxy=%s\n", proxy)
	}
	if via.CAFile != "" {
		fmt.Fprintf(&b, "sslcacert=%s\n", via.CAFile)
	}
	return []byte(b.String())
}

// direct is dnf's value of proxy for a repository that is reached without a proxy. Where a
// repository has no value, that of dnf.conf counts. The variables of curl, such as https_proxy and
// no_proxy, count in both cases: dnf.conf(5), proxy.
const direct = "_none_"

// proxyOf returns the value of proxy for a repository; "" if the spec has no proxy for such URLs.
func proxyOf(address string, via host.Via) string {
	proxy := via.HTTPS
	if strings.HasPrefix(address, "http:") {
		proxy = via.HTTP
	}
	to, err := url.Parse(address)
	if proxy == "" || err != nil {
		return proxy
	}

	proxies := httpproxy.Config{
		HTTPProxy:  via.HTTP,
		HTTPSProxy: via.HTTPS,
		NoProxy:    strings.Join(via.No, ","),
	}
	through, err := proxies.ProxyFunc()(to)
	if through == nil && err == nil {
		return direct
	}
	return proxy
}
