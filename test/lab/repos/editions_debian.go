// SPDX-License-Identifier: Apache-2.0

package repos

import "slices"

// debianNVIDIA are the editions of NVIDIA's repository for Debian 12 and 13: each listing is of a
// whole installation, the first and last of open, the middle of proprietary modules. The versions
// are those that the lab's other tests use.
func debianNVIDIA() []edition {
	names := []string{
		"debian12 nvidia 570.158.01",
		"debian nvidia 580.105.08",
		"debian nvidia 595.58.03", "debian13 nvidia 595.45.04",
	}
	// Companions lie in Debian's repository as in Ubuntu's; listed for Debian is
	// nvidia-fabricmanager-550 alone.
	older := append(slices.Clone(names), "debian12 nvidia 550.90.07", "ubuntu2404 nvidia 570.124.06")
	newer := append(slices.Clone(names), "ubuntu2404 nvidia 580.126.20")
	at := func(version string, names []string) edition {
		return edition{
			of:        "debian12 nvidia",
			version:   version,
			revision:  "-1",
			companion: "-1",
			names:     names,
			bad:       version == BadDriver,
		}
	}

	return []edition{
		at("570.172.08", older),
		at("580.65.06", newer), at("580.95.05", newer), at(BadDriver, newer),
		at("590.48.01", newer), at("595.58.03", newer),
	}
}
