// SPDX-License-Identifier: Apache-2.0

package repos

import "strings"

// Kernel is the kernel that Ubuntu's archive has precompiled modules for.
const Kernel = "6.1.0-99-lab"

// ubuntuNVIDIA are the editions of NVIDIA's repository for one release of Ubuntu: the listings of
// 22.04 and 24.04 have the same names, and where one is of a part, another of the same branch gives
// the rest.
func ubuntuNVIDIA(distro string) []edition {
	const (
		whole550 = "ubuntu2204 nvidia 550.54.15" // the one list of a whole repository up to 580
		whole595 = "ubuntu2404 nvidia 595.45.04" // and the one from 590 on
		virtual  = "ubuntu2204 nvidia 575.57.08" // how nvidia-persistenced and libnvidia-cfg1 hang together from 575 on
		draws    = "ubuntu2404 nvidia 610.43.02" // what libnvidia-compute draws in from 590 on
	)
	names570 := []string{
		"ubuntu2204 nvidia 570.133.20", "ubuntu2404 nvidia 570.133.20", "ubuntu2404 nvidia 570.124.06",
		"~" + whole550,
	}
	// Of 580.95.05 and 580.105.08 only companions are listed; they have the names and revisions of
	// 580.65.06 and 580.126.20.
	names580 := []string{
		"ubuntu2204 nvidia 580.65.06", "ubuntu2404 nvidia 580.159.03",
		"ubuntu2404 nvidia 580.159.04", "ubuntu2404 nvidia 580.126.20",
		"~" + whole550,
	}

	at := func(version, revision, companion string, names ...string) edition {
		return edition{
			of:        distro + " nvidia",
			version:   version,
			revision:  revision,
			companion: companion,
			names:     names,
		}
	}

	first := func(version string, names ...string) edition {
		return at(version, "-0ubuntu1", "-1", names...)
	}
	of580 := func(version string) edition {
		e := first(version, names580...)
		e.relations = []string{virtual}
		return e
	}

	e535 := first("535.183.01", "ubuntu2204 nvidia 535.183.01", whole550)
	e535.without = []string{"imex"}
	list := []edition{
		e535,
		first("550.54.15", whole550),
		first("570.133.20", names570...),
		at("570.148.08", "-1ubuntu1", "-1", append([]string{"ubuntu2204 nvidia 570.148.08"}, names570...)...),
		first("575.57.08", virtual, "ubuntu2404 nvidia 570.124.06", "~"+whole550),
		of580("580.65.06"), of580("580.95.05"), of580("580.105.08"),
	}
	last580 := of580("580.159.04")
	last580.revision = "-1ubuntu1"
	last580.companion = "-1ubuntu1"
	e590 := first("590.48.01", "ubuntu2404 nvidia 590.48.01", whole595)
	e590.relations = []string{draws, virtual}
	list = append(list, last580, e590)

	latest := []edition{
		at("595.58.03", "-1ubuntu1", "-1ubuntu1", whole595),
		at("595.71.05", "-1ubuntu1", "-1ubuntu1", whole595),
		at("610.43.02", "-1ubuntu1", "-1ubuntu1", whole595),
		at("615.71.09", "-1ubuntu1", "-1ubuntu1", whole595),
		at("615.71.09", "-2ubuntu1", "-2ubuntu1", whole595),
	}
	for i := range latest {
		latest[i].relations = []string{draws, virtual}
	}
	if distro == "ubuntu2604" { // it begins with 595, and 615 is listed for 24.04 alone
		return latest[:3]
	}
	return append(list, latest...)
}

// ubuntuArchive are the editions of the server branches in Ubuntu's own archive.
func ubuntuArchive(distro string) []edition {
	// The whole set is listed for 580.159.03 and 570.195.03; the open flavour's names for
	// 570.211.01, 550.144.03 and 595.71.05.
	names := []string{
		"ubuntu2404 ubuntu 580.159.03", "ubuntu2204 ubuntu 570.195.03",
		"ubuntu2404 ubuntu 570.211.01", "ubuntu2404 ubuntu 550.144.03", "ubuntu2404 ubuntu 595.71.05",
		"ubuntu2604 ubuntu 580.126.20", "ubuntu2404 ubuntu 470.256.02",
	}
	digits := strings.TrimPrefix(distro, "ubuntu")
	release := digits[:2] + "." + digits[2:] // 24.04
	at := func(version, revision string) edition {
		revision = "-0ubuntu0." + release + "." + revision
		return edition{
			of:        distro + " ubuntu",
			version:   version,
			revision:  revision,
			companion: revision,
			names:     names,
			component: "restricted",
		}
	}

	switch distro {
	case "ubuntu2204":
		old := at("535.309.01", "2")
		old.draws = "580" // the source page says transitional; to 580 is reasoned from Ubuntu 26.04, where the target is known
		return []edition{old, at("570.195.03", "2"), at("580.159.03", "1")}
	case "ubuntu2404":
		old := at("535.309.01", "2")
		old.draws = "580"
		absent := at("590.48.01", "5")
		absent.draws = "595"
		absent.component = "multiverse"
		next := at("595.71.05", "1")
		next.component = "multiverse"
		return []edition{old, at("570.211.01", "1"), at("580.159.03", "1"), at("580.173.02", "1"), absent, next}
	}

	// Of 535, 570 and 590 only names are left in 26.04: transitional, with the version of what they
	// draw in.
	transitional := func(branch string, to edition) edition {
		e := to
		e.named = branch
		e.draws = to.branch()
		return e
	}

	e580 := at("580.173.02", "1")
	e595 := at("595.71.05", "1")
	return []edition{
		e580, e595,
		transitional("535", e580), transitional("570", e580), transitional("590", e595),
	}
}
