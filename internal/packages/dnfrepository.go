// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
)

func dnfSource(r Repository) string { return "/etc/yum.repos.d/gpuadm-" + r.ID + ".repo" }

// dnfRepositories are one file each, whose key counts for that repository alone. See dnf.conf(5).
func dnfRepositories(repos []Repository, via host.Via) []converge.Want {
	wants := things.Folders("/etc/pki/rpm-gpg", "keys that repositories name")
	for _, r := range repos {
		key := "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpuadm-" + r.ID + ".asc"
		wants = append(wants,
			things.Key(key, r.Key, r.Fingerprint, via, "signs "+r.About),
			things.Exact(dnfSource(r), dnfRepo(r, key, via), 0o644, r.About))
	}
	return append(wants, Lists("dnf", Sources("dnf", repos), "dnf knows what the repositories hold"))
}

// dnfRepo refuses to go on without the repository: dnf by itself passes over one whose signature is wrong.
func dnfRepo(r Repository, key string, via host.Via) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s[gpuadm-%s]\nname=%s\nbaseurl=%s\nenabled=1\ngpgcheck=1\nrepo_gpgcheck=1\ngpgkey=file://%s\nskip_if_unavailable=0\n", header, r.ID, r.About, r.URL, key)
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
